"use strict";

function question(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input[name]")) {
    const value = input.value.trim();
    if (input.name === "*") {
      for (const [name, each] of new URLSearchParams(value)) query.append(name, each);
    } else if (path.includes("{" + input.name + "}")) {
      path = path.replace("{" + input.name + "}", encodeURIComponent(value || input.placeholder));
    } else if (value) {
      query.append(input.name, value);
    }
  }
  const body = form.querySelector("textarea");
  const search = query.toString();
  return {
    url: path + (search ? "?" + search : ""),
    method: form.dataset.method,
    type: form.dataset.mediaType,
    body: body ? body.value : null,
    locked: Boolean(form.querySelector("input.key")),
    key: form.querySelector("input.key")?.value.trim() || "",
  };
}

function quoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

function describe(form) {
  const asked = question(form);
  const words = ["curl -s", quoted(location.origin + asked.url)];
  if (asked.method !== "GET" && asked.body === null) words.splice(1, 0, "-X " + asked.method);
  // The key itself is not shown: commands are copied and passed on.
  if (asked.locked) words.push('-H "Authorization: Bearer $SHARDWISE_KEY"');
  if (asked.body !== null) {
    let body = asked.body;
    try { body = JSON.stringify(JSON.parse(asked.body)); } catch { /* shown as typed */ }
    words.push("-H " + quoted("Content-Type: " + asked.type), "-d " + quoted(body));
  }
  form.querySelector(".curl").textContent = words.join(" ");
}

async function ask(form) {
  const asked = question(form);
  const output = form.querySelector("output");
  output.textContent = "…";
  try {
    const headers = asked.body === null ? {} : { "Content-Type": asked.type };
    if (asked.key) headers["Authorization"] = "Bearer " + asked.key;
    const response = await fetch(asked.url, { method: asked.method, headers, body: asked.body });
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON */ }
    const status = document.createElement("p");
    status.className = "status";
    status.textContent = response.status + " " + response.statusText;
    const pre = document.createElement("pre");
    pre.textContent = shown;
    output.replaceChildren(status, pre);
  } catch (error) {
    output.textContent = "no answer: " + error.message;
  }
}

// One key serves every form; it lives as long as the page.
const keys = document.querySelectorAll("input.key");
for (const key of keys) {
  key.addEventListener("input", () => { for (const other of keys) other.value = key.value; });
}

for (const form of document.querySelectorAll("form.try")) {
  const select = form.querySelector("select.example");
  if (select) {
    select.addEventListener("change", () => {
      form.querySelector("textarea").value = select.selectedOptions[0].dataset.value;
      describe(form);
    });
  }
  form.addEventListener("input", () => describe(form));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(form); });
  describe(form);
}
