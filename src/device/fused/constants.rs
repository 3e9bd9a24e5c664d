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
pub(super) const TOGETHER: usize = 2;

/// Encoding of an absent coefficient.
pub(super) const ABSENT: u64 = 0xFFFF;

/// Blocks per multiprocessor of the kernels.
pub(super) const DOTS_BLOCKS: usize = 4;
pub(super) const COMBINE_BLOCKS: usize = 3;
pub(super) const STEP_BLOCKS: usize = 4;

/// Opcodes of instructions. Those from [`STOP_AT_MOST`] on stop the passes.
pub(super) const ADD: u16 = 0;
pub(super) const SUB: u16 = 1;
pub(super) const MUL: u16 = 2;
pub(super) const DIV: u16 = 3;
pub(super) const SQRT: u16 = 4;
pub(super) const PUSH: u16 = 5;
pub(super) const STOP_AT_MOST: u16 = 6;
pub(super) const STOP_UNLESS_ABOVE: u16 = 7;
pub(super) const STOP_UNLESS_FINITE: u16 = 8;

/// Sign of a coefficient, in the highest bit of its register's number.
pub(super) const NEGATIVE: u16 = 1 << 15;

/// Second factors of sums: [`Partner`](super::Partner).
pub(super) const PARTNER_ABSENT: u64 = 0;
pub(super) const PARTNER_ITSELF: u64 = 1;
pub(super) const PARTNER_OTHER: u64 = 2;
pub(super) const PARTNER_SCALED: u64 = 3;
pub(super) const PARTNER_CHANGE: u64 = 4;
