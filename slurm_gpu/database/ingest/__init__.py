"""Handle POST /v1/node, from the bytes of a request to the stored records."""
