"""INT8 quantization: activation ranges, SmoothQuant, GPTQ."""
