# The data sources read files that are mapped into memory, safetensors among them.
set(MESHWRIGHT_PLUGIN_LINK meshwright_common meshwright_checkpoint)
