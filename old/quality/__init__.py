"""The Sigmoid Head and what it is compared with: is this output any good? (arXiv 2601.00680)"""
