"""Reports from run folders: a page, tables, pictures. The core never imports this package."""
