-- Tiles of a GPU's matrix products, rows by columns, and the share of its rate that each reaches:
-- NVIDIA, "Matrix Multiplication Background User's Guide" (DU-09799), section 2.2 on tile
-- efficiency.
return { { 256, 128, 1 }, { 128, 128, 0.93 }, { 128, 64, 0.8 }, { 64, 64, 0.6 } }
