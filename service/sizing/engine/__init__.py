"""What one version of vLLM does: defaults, rules, accounting, flags."""
