"""What runs inside an interpreter that has vLLM. Imports nothing of specserve."""
