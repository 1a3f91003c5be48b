"""Pictures made from run folders. The core never imports this package."""
