"""`sckn serve`: a page and a JSON API that make photographs larger and classify images, with FastAPI (the extra `web`)."""
