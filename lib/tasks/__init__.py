"""Tasks that scores of quality are judged by, see `catalogue`, and what is measured on them."""
