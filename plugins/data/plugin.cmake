# Mapped files.
set(MESHWRIGHT_PLUGIN_LINK meshwright_common)
