# syntax=docker/dockerfile:1
FROM python:3.13-slim-bookworm AS build
WORKDIR /app
COPY requirements/main.txt requirements/main.txt
RUN python -m venv /app/venv \
 && /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes \
      -r requirements/main.txt
COPY service service
COPY migrations migrations
RUN /app/venv/bin/python -m compileall -q service migrations

FROM python:3.13-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin shardwise
COPY --from=build /app /app
COPY LICENSE /app/
WORKDIR /app
# Nothing is written but to /tmp, where several workers share their metrics.
ENV PATH=/app/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SHARDWISE_HOST=0.0.0.0 \
    SHARDWISE_LOG_FORMAT=json
USER 10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ.get('SHARDWISE_PORT', '8000')}/ready\", timeout=4)"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["serve", "--quiet"]
