//! Programs that compute scalars from sums without the host.

use super::constants::{
    ADD, DIV, MAX_CODE, MUL, PUSH, SQRT, STOP_AT_MOST, STOP_UNLESS_ABOVE, STOP_UNLESS_FINITE, SUB,
};
pub use super::constants::{RING, STATUS, WINDOW};
use crate::Error;

/// Register that holds the constant one.
pub const ONE: u16 = 1;
/// Largest number of registers: coefficients encode a register in 15 bits, one value of which means
/// none.
pub const MAX_REGISTERS: usize = 0x7FFF;

/// One instruction. Operands are numbers of registers below [`WINDOW`]; arithmetic is in 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// `to = a + b`
    Add(u16, u16, u16),
    /// `to = a - b`
    Sub(u16, u16, u16),
    /// `to = a · b`
    Mul(u16, u16, u16),
    /// `to = a / b`, and 0 if `b` is 0.
    Div(u16, u16, u16),
    /// `to = √a`
    Sqrt(u16, u16),
    /// Stores `a` at index `b` of a ring of [`RING`] registers. The first operand is the first
    /// register of the ring, which lies beyond the window.
    Push(u16, u16, u16),
    /// Sets [`STATUS`] to the first number and ends the program if `a <= b`.
    StopAtMost(u16, u16, u16),
    /// The same unless `a > b`, hence also if one of them is NaN.
    StopUnlessAbove(u16, u16, u16),
    /// The same unless `a` is finite.
    StopUnlessFinite(u16, u16),
}

/// A program of a [`Code`]. The default does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Program {
    pub(super) first: usize,
    pub(super) len: usize,
}

/// All programs that passes can run.
#[derive(Debug, Clone, Default)]
pub struct Code(pub(super) Vec<Instruction>);

impl Code {
    /// No programs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a program.
    pub fn add(&mut self, instructions: &[Instruction]) -> Program {
        let program = Program { first: self.0.len(), len: instructions.len() };
        self.0.extend_from_slice(instructions);
        program
    }

    /// Checks that every register used exists.
    pub(super) fn check(&self, registers: usize) -> Result<(), Error> {
        for instruction in &self.0 {
            let (_, to, a, b) = instruction.parts();
            let ring = matches!(instruction, Instruction::Push(..));
            let end = if ring { usize::from(to) + usize::from(RING) } else { usize::from(to) + 1 };
            // Programs read the first registers from a copy, which rings are not part of.
            let in_place = instruction.stops() || ring != (to < WINDOW);
            let in_window = a < WINDOW && b < WINDOW && in_place;
            if !in_window || (!instruction.stops() && end > registers) {
                let message = format!(
                    "{instruction:?} names a register that is not there, of {registers}; or none \
                     of the first {WINDOW}; or a ring that begins in them"
                );
                return Err(Error::VectorPass { message });
            }
        }
        Ok(())
    }

    /// Returns the instructions of a program of this code.
    pub(super) fn of(&self, program: Program) -> Result<&[Instruction], Error> {
        let found = self.0.get(program.first..program.first + program.len);
        found.filter(|found| found.len() <= MAX_CODE).ok_or_else(|| Error::VectorPass {
            message: format!(
                "a program has at most {MAX_CODE} instructions and belongs to the code of its \
                 passes"
            ),
        })
    }
}

impl Instruction {
    fn stops(self) -> bool {
        matches!(
            self,
            Self::StopAtMost(..) | Self::StopUnlessAbove(..) | Self::StopUnlessFinite(..)
        )
    }

    /// Opcode and operands.
    fn parts(self) -> (u16, u16, u16, u16) {
        match self {
            Self::Add(to, a, b) => (ADD, to, a, b),
            Self::Sub(to, a, b) => (SUB, to, a, b),
            Self::Mul(to, a, b) => (MUL, to, a, b),
            Self::Div(to, a, b) => (DIV, to, a, b),
            Self::Sqrt(to, a) => (SQRT, to, a, 0),
            Self::Push(to, a, b) => (PUSH, to, a, b),
            Self::StopAtMost(code, a, b) => (STOP_AT_MOST, code, a, b),
            Self::StopUnlessAbove(code, a, b) => (STOP_UNLESS_ABOVE, code, a, b),
            Self::StopUnlessFinite(code, a) => (STOP_UNLESS_FINITE, code, a, 0),
        }
    }

    /// Encodes the instruction as a word for the GPU.
    pub(super) fn word(self) -> u64 {
        let (operation, to, a, b) = self.parts();
        u64::from(operation) | u64::from(to) << 16 | u64::from(a) << 32 | u64::from(b) << 48
    }
}

/// Runs a program on the CPU.
pub(super) fn run(program: &[Instruction], registers: &mut [f64]) {
    for instruction in program {
        let (_, to, a, b) = instruction.parts();
        let (a, b) = (registers[usize::from(a)], registers[usize::from(b)]);
        let result = match instruction {
            Instruction::Add(..) => a + b,
            Instruction::Sub(..) => a - b,
            Instruction::Mul(..) => a * b,
            Instruction::Div(..) if b == 0.0 => 0.0,
            Instruction::Div(..) => a / b,
            Instruction::Sqrt(..) => a.sqrt(),
            Instruction::Push(..) => {
                registers[usize::from(to) + (b as usize) % usize::from(RING)] = a;
                continue;
            }
            stop => {
                let stops = match stop {
                    Instruction::StopAtMost(..) => a <= b,
                    Instruction::StopUnlessAbove(..) => {
                        a.partial_cmp(&b) != Some(std::cmp::Ordering::Greater)
                    }
                    _ => !a.is_finite(),
                };
                if stops {
                    registers[usize::from(STATUS)] = f64::from(to);
                    return;
                }
                continue;
            }
        };
        registers[usize::from(to)] = result;
    }
}

#[cfg(test)]
mod tests {
    use super::Instruction::*;
    use super::*;

    #[test]
    fn programs_compute_stop_and_keep() {
        let mut registers = vec![0.0; 300];
        registers[..6].copy_from_slice(&[0.0, 1.0, 9.0, 4.0, 0.0, f64::NAN]);
        let all = [
            Sqrt(6, 2),
            Div(7, 3, 4),
            Div(8, 2, 3),
            Sub(9, 2, 3),
            Mul(10, 9, 6),
            Add(11, 10, 1),
            Push(100, 11, 3),
        ];
        run(&all, &mut registers);
        assert_eq!(registers[6..12], [3.0, 0.0, 2.25, 5.0, 15.0, 16.0]);
        assert_eq!((registers[104], registers[0]), (16.0, 0.0));
        // 130 is index 2 of a ring of 128 registers.
        registers[3] = 130.0;
        run(&[Push(100, 1, 3)], &mut registers);
        assert_eq!(registers[102], 1.0);
        for (stop, stops) in [
            (StopAtMost(7, 1, 2), true),
            (StopAtMost(7, 2, 1), false),
            (StopAtMost(7, 5, 1), false),
            (StopUnlessAbove(7, 2, 1), false),
            (StopUnlessAbove(7, 1, 1), true),
            (StopUnlessAbove(7, 5, 1), true),
            (StopUnlessFinite(7, 5), true),
            (StopUnlessFinite(7, 2), false),
        ] {
            registers[0] = 0.0;
            run(&[stop, Add(20, 20, 1)], &mut registers);
            assert_eq!(registers[0], if stops { 7.0 } else { 0.0 }, "{stop:?}");
        }
        assert_eq!(registers[20], 4.0, "what stops, stops");
    }

    #[test]
    fn registers_that_are_not_there_are_refused() {
        for (wrong, registers) in [
            (Add(WINDOW, 0, 0), 100),
            (Sqrt(2, WINDOW), 100),
            (Push(90, 0, 0), 217),
            // On a GPU later instructions would read the earlier number.
            (Push(WINDOW - 1, 0, 0), 1000),
            (Mul(9, 0, 9), 9),
        ] {
            let mut code = Code::new();
            code.add(&[wrong]);
            let message = code.check(registers).unwrap_err().to_string();
            assert!(message.contains("not there"), "{message}");
        }
        let mut code = Code::new();
        let program = code.add(&[Push(90, 0, 0), StopAtMost(500, 1, 2)]);
        code.check(218).unwrap();
        assert_eq!(code.of(program).unwrap().len(), 2);
        assert!(Code::new().of(program).is_err());
    }
}
