#The plugin nccl's own files, over a library that stands for NCCL.
list(APPEND files
     "${PROJECT_SOURCE_DIR}/plugins/nccl/carrier.cpp"
     "${PROJECT_SOURCE_DIR}/plugins/nccl/group_backend.cpp"
     "${PROJECT_SOURCE_DIR}/plugins/nccl/source.cpp")
