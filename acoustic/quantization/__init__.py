"""INT8: activation ranges, SmoothQuant and GPTQ weight rounding."""
