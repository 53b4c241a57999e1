# The data sources read files that are mapped into memory.
set(MESHWRIGHT_PLUGIN_LINK meshwright_common)
