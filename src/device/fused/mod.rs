//! Fused vector passes with device-resident scalars.
//!
//! Between two products an iterative method adds vectors, scales them and takes inner products. All
//! of it is limited by memory bandwidth: the number of times that a vector is read determines the
//! time. A pass reads each of its vectors once. Coefficients are *registers*, numbers in device
//! memory. The inner products of a pass become registers too, from which a short [program](Code)
//! computes the next coefficients. On a GPU nothing waits for the host, and iterations can be
//! captured in a [`Graph`](super::Graph). On the CPU the same calls do their work at once.
//!
//! Registers and sums are 64-bit numbers for every scalar type of the vectors. The order of a sum
//! depends on the length, on the device, and on a GPU on whether all vectors begin at multiples of
//! 16 bytes: its bits are reproducible, on the CPU for any number of threads.
//!
//! ```
//! use sparseop::device::fused::{Code, Coefficient, Combine, Dots, Instruction, Passes};
//! use sparseop::{Device, DeviceVec, Stream};
//!
//! // y -= (x·y / x·x) x: makes y orthogonal to x.
//! let (xy, xx, part) = (8, 9, 10);
//! let mut code = Code::new();
//! let divide = code.add(&[Instruction::Div(part, xy, xx)]);
//! let stream = Stream::new(&Device::auto())?;
//! let mut passes = Passes::new(&stream, 64, code)?;
//!
//! let x = DeviceVec::from_slice(&stream.device(), &[1.0, 1.0])?;
//! let mut y = DeviceVec::from_slice(&stream.device(), &[1.0, 3.0])?;
//! let (with, and) = (Some(&y), Some(&x));
//! passes.dots(Dots { of: &x, with, and, at: xy, then: divide, backward: false })?;
//! let keep = Some(Coefficient::ONE);
//! let add = Some((Coefficient::minus(part), &x));
//! passes.combine(&mut y, Combine { keep, add, ..Combine::new() })?;
//! assert_eq!(y.to_vec()?, [-1.0, 1.0]);
//! # Ok::<(), sparseop::Error>(())
//! ```
// Without GPU support, code that has a GPU is unreachable.
#![cfg_attr(not(feature = "cuda"), allow(unreachable_code))]

mod code;
mod constants;
mod gpu;
mod host;
#[cfg(test)]
mod tests;

pub use code::{Code, Instruction, MAX_REGISTERS, ONE, Program, RING, STATUS, WINDOW};

use super::peers::PeerSums;
use super::{Device, DeviceVec, Stream};
use crate::{Error, Scalar};
use gpu::GpuPasses;
use host::HostPasses;
use std::sync::Arc;

/// A register, as it is or negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coefficient {
    register: u16,
    negative: bool,
}

/// Second factor of a sum: the result of a pass is multiplied by it, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum Partner {
    /// No sum.
    #[default]
    Absent = constants::PARTNER_ABSENT,
    /// The result itself: Σ y².
    Itself = constants::PARTNER_ITSELF,
    /// [`Combine::with`]: Σ y w.
    Other = constants::PARTNER_OTHER,
    /// The result, scaled by [`Combine::diagonal`]: Σ d y².
    Scaled = constants::PARTNER_SCALED,
    /// The sum of changes instead of a product: Σ |y − previous y|. For the first sum only.
    Change = constants::PARTNER_CHANGE,
}

/// [`Passes::dots`]: Σ `of`·`with` and Σ `of`·`and`.
#[derive(Debug, Clone, Copy)]
pub struct Dots<'a, T: Scalar> {
    /// Common vector of both sums.
    pub of: &'a DeviceVec<T>,
    /// The other vector of the first sum; `None` for Σ `of`.
    pub with: Option<&'a DeviceVec<T>>,
    /// The other vector of the second sum; `None` for no second sum.
    pub and: Option<&'a DeviceVec<T>>,
    /// Register of the first sum; the second sum goes to the next register.
    pub at: u16,
    /// Program to run afterwards.
    pub then: Program,
    /// True to traverse the vectors from the end to the beginning: the elements that the previous
    /// pass touched last are still in the cache.
    pub backward: bool,
}

/// [`Passes::combine`]: `y = keep · y + add · (diagonal ∘ u) + and · v`, and two sums of the
/// result.
#[derive(Debug, Clone, Copy)]
pub struct Combine<'a, T: Scalar> {
    /// Factor of `y`. If `None`, `y` is overwritten without being read.
    pub keep: Option<Coefficient>,
    /// A vector to add, with its factor.
    pub add: Option<(Coefficient, &'a DeviceVec<T>)>,
    /// A second vector to add, with its factor.
    pub and: Option<(Coefficient, &'a DeviceVec<T>)>,
    /// A diagonal, for [`scaled`](Self::scaled) and for [`Partner::Scaled`].
    pub diagonal: Option<&'a DeviceVec<T>>,
    /// True if the vector of [`add`](Self::add) is multiplied by the diagonal, element by element.
    pub scaled: bool,
    /// The vector of [`Partner::Other`].
    pub with: Option<&'a DeviceVec<T>>,
    /// Second factors of the two sums of the result.
    pub sums: [Partner; 2],
    /// Register of the first sum; the second sum goes to the next register.
    pub at: u16,
    /// Program to run afterwards.
    pub then: Program,
    /// True to traverse the vectors from the end to the beginning; see [`Dots::backward`].
    pub backward: bool,
    /// True to run regardless of [`STATUS`].
    pub always: bool,
}

/// [`Passes::step`]: `x += along · p`, then `p = with · (diagonal ∘ r) + keep · p`.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a, T: Scalar> {
    /// Step length along the direction `p`.
    pub along: Coefficient,
    /// Factor of the residual.
    pub with: Coefficient,
    /// The residual.
    pub r: &'a DeviceVec<T>,
    /// A diagonal that the residual is multiplied by, element by element.
    pub diagonal: Option<&'a DeviceVec<T>>,
    /// Factor of the previous direction.
    pub keep: Coefficient,
    /// True to traverse the vectors from the end to the beginning; see [`Dots::backward`].
    pub backward: bool,
}

/// Registers, programs, and the stream on which passes run.
///
/// While the register [`STATUS`] is not zero, passes do nothing, except those that always run. A
/// program that detects the end of an iteration sets it, and the work enqueued behind it leaves the
/// vectors unchanged. The register [`ONE`] holds a one.
///
/// All passes of one value, also those captured in graphs, share its registers. Passes that run at
/// the same time on two streams must not use the same ones.
#[derive(Debug)]
pub struct Passes<T: Scalar> {
    stream: Stream,
    registers: DeviceVec<f64>,
    code: Code,
    on_gpu: Option<GpuPasses>,
    host: HostPasses,
    _scalar: std::marker::PhantomData<T>,
}

/// Sums over vectors of which other parts of an operator have the other elements.
pub trait SharedSums: std::fmt::Debug + Send + Sync {
    /// Number of elements of a block: the sums of a block have the same bits whichever part has it.
    fn block(&self) -> usize;

    /// Sums over the blocks of all parts. Every part calls it with the sums of its own blocks, in
    /// their order, and receives the same total.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`] and [`Error::RankFailed`].
    fn total(&self, blocks: &[[f64; 2]]) -> Result<[f64; 2], Error>;

    /// Sums that GPUs share; `None` on the CPU.
    fn on_gpu(&self) -> Option<&PeerSums> {
        None
    }
}

impl Coefficient {
    /// One.
    pub const ONE: Self = Self::plus(ONE);

    /// The value of a register.
    pub const fn plus(register: u16) -> Self {
        Self { register, negative: false }
    }

    /// The negated value of a register.
    pub const fn minus(register: u16) -> Self {
        Self { register, negative: true }
    }

    fn of(self, registers: &[f64]) -> f64 {
        let value = registers[usize::from(self.register)];
        if self.negative { -value } else { value }
    }

    /// Register number, with the sign in the highest bit.
    fn bits(self) -> u16 {
        self.register | if self.negative { constants::NEGATIVE } else { 0 }
    }
}

impl<T: Scalar> Combine<'_, T> {
    /// A pass with nothing to add and nothing to sum: `y` becomes zero.
    pub const fn new() -> Self {
        Self {
            keep: None,
            add: None,
            and: None,
            diagonal: None,
            scaled: false,
            with: None,
            sums: [Partner::Absent; 2],
            at: 0,
            then: Program { first: 0, len: 0 },
            backward: false,
            always: false,
        }
    }
}

impl<T: Scalar> Default for Combine<'_, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Scalar> Passes<T> {
    /// Creates passes on a stream, with `registers` registers, at least [`WINDOW`], and the
    /// programs of `code`. Registers are zero, except [`ONE`].
    ///
    /// # Errors
    ///
    /// [`Error::VectorPass`] if there are more than [`MAX_REGISTERS`], or if a program uses a
    /// register that does not exist; [`Error::GpuMemory`], [`Error::Gpu`] and
    /// [`Error::KernelCompile`].
    pub fn new(stream: &Stream, registers: usize, code: Code) -> Result<Self, Error> {
        T::passes(stream, registers, code)
    }

    pub(crate) fn new_impl(stream: &Stream, registers: usize, code: Code) -> Result<Self, Error> {
        let registers = registers.max(usize::from(WINDOW));
        if registers > MAX_REGISTERS {
            let message = format!("{registers} registers, of at most {MAX_REGISTERS}");
            return Err(Error::VectorPass { message });
        }
        code.check(registers)?;
        let mut values = vec![0.0; registers];
        values[usize::from(ONE)] = 1.0;
        let words: Vec<u64> = code.0.iter().map(|instruction| instruction.word()).collect();
        let device = stream.device();
        let on_gpu = match &device {
            Device::Cpu => None,
            Device::Cuda(gpu) => Some(GpuPasses::new::<T>(*gpu, &words)?),
        };
        let registers = DeviceVec::from_slice(&device, &values)?;
        Ok(Self {
            stream: stream.clone(),
            registers,
            code,
            on_gpu,
            host: HostPasses::default(),
            _scalar: std::marker::PhantomData,
        })
    }

    /// Returns the stream on which passes run.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Shares the sums of later passes with those of other parts: the vectors of these passes are
    /// parts of longer ones.
    ///
    /// # Errors
    ///
    /// [`Error::VectorPass`] if the sums are not those of this device; [`Error::Gpu`] and
    /// [`Error::KernelCompile`].
    pub fn share_sums(&mut self, sums: Arc<dyn SharedSums>) -> Result<(), Error> {
        match (&mut self.on_gpu, sums.on_gpu()) {
            (None, None) => {
                self.host.share(sums);
                Ok(())
            }
            (Some(on_gpu), Some(peers)) if peers.device() == self.stream.device() => {
                on_gpu.share::<T>(peers)
            }
            _ => Err(Error::VectorPass { message: "the sums are of another device".to_owned() }),
        }
    }

    /// Reads all registers, after everything enqueued on the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if the GPU fails, now or at work enqueued earlier, or while the stream is
    /// captured for a graph.
    pub fn read(&self) -> Result<Vec<f64>, Error> {
        match (self.registers.share(), self.stream.queue(), &self.on_gpu) {
            (Some(registers), Some(queue), Some(on_gpu)) => on_gpu.read(queue, &registers),
            _ => self.registers.to_vec(),
        }
    }

    /// Sets all registers, after everything enqueued on the stream.
    ///
    /// # Errors
    ///
    /// [`Error::CopyLength`] if `values` has another length; [`Error::Gpu`], also while the stream
    /// is captured for a graph.
    pub fn write(&mut self, values: &[f64]) -> Result<(), Error> {
        match (self.registers.share(), self.stream.queue()) {
            (Some(buffer), Some(queue)) if buffer.len() == values.len() => {
                let _lock = queue.lock_to_wait("set registers")?;
                buffer.write(queue, values)
            }
            _ => self.registers.copy_from(values),
        }
    }

    /// Computes sums of products and runs a program on them.
    ///
    /// # Errors
    ///
    /// [`Error::VectorPass`] if the vectors differ in length, or if a register or the program does
    /// not exist; [`Error::WrongDevice`]; [`Error::Gpu`].
    pub fn dots(&mut self, pass: Dots<'_, T>) -> Result<(), Error> {
        T::dots(self, pass)
    }

    pub(crate) fn dots_impl(&mut self, pass: Dots<'_, T>) -> Result<(), Error> {
        self.check(
            pass.of.len(),
            &[("of", Some(pass.of)), ("with", pass.with), ("and", pass.and)],
            &[],
        )?;
        let second = if pass.and.is_some() { Partner::Other } else { Partner::Absent };
        self.check_sums([Partner::Other, second], pass.at, pass.then)?;
        match (&self.on_gpu, self.stream.queue()) {
            (Some(on_gpu), Some(queue)) => on_gpu.dots(queue, &self.registers, &pass),
            _ if self.is_stopped(false) => Ok(()),
            _ => {
                self.host.dots(&pass);
                let sums = self.host.total()?;
                self.conclude(sums, second, pass.at, pass.then)
            }
        }
    }

    /// Computes a linear combination, and sums of the result.
    ///
    /// # Errors
    ///
    /// As [`Passes::dots`].
    pub fn combine(&mut self, y: &mut DeviceVec<T>, pass: Combine<'_, T>) -> Result<(), Error> {
        T::combine(self, y, pass)
    }

    pub(crate) fn combine_impl(
        &mut self,
        y: &mut DeviceVec<T>,
        pass: Combine<'_, T>,
    ) -> Result<(), Error> {
        let vectors = [
            ("u", pass.add.map(|(_, u)| u)),
            ("v", pass.and.map(|(_, v)| v)),
            ("diagonal", pass.diagonal),
            ("with", pass.with),
        ];
        let coefficients = [pass.keep, pass.add.map(|(c, _)| c), pass.and.map(|(c, _)| c)];
        self.check(y.len(), &[&[("y", Some(&*y))], &vectors[..]].concat(), &coefficients)?;
        self.check_sums(pass.sums, pass.at, pass.then)?;
        let scaled = pass.scaled || pass.sums.contains(&Partner::Scaled);
        let lacks = |needed: bool, vector: Option<_>| needed && vector.is_none();
        if lacks(scaled, pass.diagonal) || lacks(pass.sums.contains(&Partner::Other), pass.with) {
            return Err(Error::VectorPass {
                message: "the diagonal or the other vector that it names is missing".to_owned(),
            });
        }
        match (&self.on_gpu, self.stream.queue()) {
            (Some(on_gpu), Some(queue)) => on_gpu.combine(queue, &self.registers, y, &pass),
            _ if self.is_stopped(pass.always) => Ok(()),
            _ => {
                self.host.combine(y, &pass, self.registers.host());
                if pass.sums[0] == Partner::Absent {
                    return Ok(());
                }
                let sums = self.host.total()?;
                self.conclude(sums, pass.sums[1], pass.at, pass.then)
            }
        }
    }

    /// Takes a step along a direction and computes the next direction.
    ///
    /// # Errors
    ///
    /// As [`Passes::dots`].
    pub fn step(
        &mut self,
        x: &mut DeviceVec<T>,
        p: &mut DeviceVec<T>,
        pass: Step<'_, T>,
    ) -> Result<(), Error> {
        T::step(self, x, p, pass)
    }

    pub(crate) fn step_impl(
        &mut self,
        x: &mut DeviceVec<T>,
        p: &mut DeviceVec<T>,
        pass: Step<'_, T>,
    ) -> Result<(), Error> {
        let vectors =
            [("x", Some(&*x)), ("p", Some(&*p)), ("r", Some(pass.r)), ("diagonal", pass.diagonal)];
        self.check(x.len(), &vectors, &[pass.along, pass.with, pass.keep].map(Some))?;
        match (&self.on_gpu, self.stream.queue()) {
            (Some(on_gpu), Some(queue)) => on_gpu.step(queue, &self.registers, [&*x, &*p], &pass),
            _ if self.is_stopped(false) => Ok(()),
            _ => {
                self.host.step(x, p, &pass, self.registers.host());
                Ok(())
            }
        }
    }

    /// True if a pass on the CPU is to do nothing.
    fn is_stopped(&self, always: bool) -> bool {
        !always && self.registers.host()[usize::from(STATUS)] != 0.0
    }

    /// Stores the sums and runs the program, on the CPU.
    fn conclude(
        &mut self,
        sums: [f64; 2],
        second: Partner,
        at: u16,
        then: Program,
    ) -> Result<(), Error> {
        let (registers, at) = (self.registers.host_mut(), usize::from(at));
        registers[at] = sums[0];
        if second != Partner::Absent {
            registers[at + 1] = sums[1];
        }
        code::run(self.code.of(then)?, registers);
        Ok(())
    }

    fn check(
        &self,
        len: usize,
        vectors: &[(&'static str, Option<&DeviceVec<T>>)],
        coefficients: &[Option<Coefficient>],
    ) -> Result<(), Error> {
        let device = self.stream.device();
        for (what, vector) in vectors.iter().filter_map(|(what, vector)| Some((*what, (*vector)?)))
        {
            if vector.len() != len {
                let message = format!(
                    "vector `{what}` has {} elements, and the others have {len}",
                    vector.len()
                );
                return Err(Error::VectorPass { message });
            }
            if vector.device() != device {
                let (expected, found) = (device.to_string(), vector.device().to_string());
                return Err(Error::WrongDevice { what, expected, found });
            }
        }
        let registers = self.registers.len();
        match coefficients.iter().flatten().find(|c| usize::from(c.register) >= registers) {
            Some(c) => Err(Error::VectorPass {
                message: format!("there are {registers} registers, and it names {}", c.register),
            }),
            None => Ok(()),
        }
    }

    fn check_sums(&self, sums: [Partner; 2], at: u16, then: Program) -> Result<(), Error> {
        self.code.of(then)?;
        let message =
            if usize::from(at) + usize::from(sums[1] != Partner::Absent) >= self.registers.len() {
                "its sums have no registers"
            } else if sums[1] == Partner::Change {
                "only the first sum can be of what has changed"
            } else if sums[0] == Partner::Absent && (sums[1] != Partner::Absent || then.len > 0) {
                "without a first sum there is no second one and no program"
            } else {
                return Ok(());
            };
        Err(Error::VectorPass { message: message.to_owned() })
    }
}
