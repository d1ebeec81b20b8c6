"""A shop on FastAPI: ``uvicorn fastapi_shop.web:web`` serves it."""
