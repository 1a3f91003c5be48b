"""voidrl's reward in other libraries: one file each, which needs that library and is imported by its name."""
