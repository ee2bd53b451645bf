"""Two servers, or two KV formats, on the same questions: did the cheaper cache cost quality?"""
