//! Constants of fused passes on a GPU. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `fused`.

/// Status register: while it is not zero, guarded passes do nothing.
pub const STATUS: u16 = 0;

/// Number of registers that programs can access.
pub const WINDOW: u16 = 64;

/// Number of registers of a ring that [`Instruction::Push`](super::Instruction::Push) writes to.
pub const RING: u16 = 128;

/// Largest number of instructions of a program.
pub(super) const MAX_CODE: usize = 32;

/// Number of vector loads of a thread at a time.
pub(super) const LOADS: usize = 2;

/// Encoding of an absent coefficient.
pub(super) const ABSENT: u64 = 0xFFFF;

/// Blocks per multiprocessor of the kernels of `Passes::dots`.
pub(super) const DOTS_BLOCKS: usize = 4;

/// Blocks per multiprocessor of the kernels of `Passes::combine`.
pub(super) const COMBINE_BLOCKS: usize = 3;

/// Blocks per multiprocessor of the kernels of `Passes::step`.
pub(super) const STEP_BLOCKS: usize = 4;

/// Opcode of an addition.
pub(super) const ADD: u16 = 0;

/// Opcode of a subtraction.
pub(super) const SUB: u16 = 1;

/// Opcode of a multiplication.
pub(super) const MUL: u16 = 2;

/// Opcode of a division.
pub(super) const DIV: u16 = 3;

/// Opcode of a square root.
pub(super) const SQRT: u16 = 4;

/// Opcode of a store in a ring.
pub(super) const PUSH: u16 = 5;

/// Opcode of a stop if a number is at most another: the first of the opcodes that stop the passes.
pub(super) const STOP_AT_MOST: u16 = 6;

/// Opcode of a stop unless a number is above another.
pub(super) const STOP_UNLESS_ABOVE: u16 = 7;

/// Opcode of a stop unless a number is finite.
pub(super) const STOP_UNLESS_FINITE: u16 = 8;

/// Sign of a coefficient, in the highest bit of its register's number.
pub(super) const NEGATIVE: u16 = 1 << 15;

/// Number of [`Partner::Absent`](super::Partner::Absent).
pub(super) const PARTNER_ABSENT: u64 = 0;

/// Number of [`Partner::Itself`](super::Partner::Itself).
pub(super) const PARTNER_ITSELF: u64 = 1;

/// Number of [`Partner::Other`](super::Partner::Other).
pub(super) const PARTNER_OTHER: u64 = 2;

/// Number of [`Partner::Scaled`](super::Partner::Scaled).
pub(super) const PARTNER_SCALED: u64 = 3;

/// Number of [`Partner::Change`](super::Partner::Change).
pub(super) const PARTNER_CHANGE: u64 = 4;
