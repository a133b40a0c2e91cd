"""LangChain and LangGraph integration of the Autellix client."""
