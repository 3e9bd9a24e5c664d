// Sections of JDS, for the kernels that multiply and pack.

#pragma once

// Record of the section table: `Section` in src/formats/jds/sections.rs, in 64-bit words.
struct Section {
    u64 first_row, rows, width, full, start;
};
