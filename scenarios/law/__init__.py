"""Nothing happens without a cause: the law that every play is judged by, whatever it promises."""
