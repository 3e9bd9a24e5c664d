//! Passes on a GPU: launches of kernels/vector.cu.

use super::constants::{ABSENT, COMBINE_BLOCKS, DOTS_BLOCKS, LOADS, STEP_BLOCKS};
use super::{Coefficient, Combine, Dots, Partner, Program, Step};
use crate::device::peers::PeerSums;
use crate::device::{
    BLOCK, Buffer, DeviceVec, Gpu, Kernel, Launch, Pinned, Ptr, Queue, Scratch, kernels,
};
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a vector load.
const VECTOR_BYTES: usize = 16;

/// State of passes on a GPU.
#[derive(Debug)]
pub(super) struct GpuPasses {
    gpu: Gpu,
    dots: Kernel,
    combine: Kernel,
    step: Kernel,
    /// Sums of blocks, and behind them the number of blocks that have written theirs: for each
    /// stream and graph its own, which may run at the same time.
    scratch: Scratch<f64>,
    /// Number of sums.
    sums: usize,
    code: Arc<Buffer<u64>>,
    peers: Option<PeerPasses>,
    /// Memory of the host to which the registers are copied, allocated when they are first read.
    read_back: OnceCell<Mutex<Pinned<f64>>>,
}

/// Passes whose sums several GPUs share.
#[derive(Debug)]
struct PeerPasses {
    gpu: Gpu,
    sums: PeerSums,
    dots: Kernel,
    combine: Kernel,
}

/// Parameters common to all launches.
#[derive(Clone, Copy)]
struct Frame {
    blocks: u32,
    len: u64,
    vectors16: u64,
}

impl GpuPasses {
    pub(super) fn new<T: Scalar>(gpu: Gpu, code: &[u64]) -> Result<Self, Error> {
        let kernel = |name: &str| gpu.kernel("vector", &format!("vector_{name}_{}", T::KIND));
        let most = gpu.multiprocessors() * DOTS_BLOCKS.max(COMBINE_BLOCKS);
        Ok(Self {
            gpu,
            dots: kernel("dots")?,
            combine: kernel("combine")?,
            step: kernel("step")?,
            scratch: Scratch::cleared(gpu, 2 * most + 1),
            sums: 2 * most,
            code: Arc::new(gpu.upload(code)?),
            peers: None,
            read_back: OnceCell::new(),
        })
    }

    /// Reads the registers, always the same ones, after everything enqueued.
    pub(super) fn read(&self, queue: &Queue, registers: &Buffer<f64>) -> Result<Vec<f64>, Error> {
        if self.peers.is_some() {
            // The driver may be locked in a copy to pageable memory, and while page-locked memory
            // is allocated, also for parts that this one waits for.
            let _lock = queue.lock_to_wait("read registers")?;
            let mut values = vec![0.0; registers.len()];
            queue.synchronize()?;
            registers.read(queue, &mut values)?;
            return Ok(values);
        }
        let allocate = || self.gpu.pinned(registers.len()).map(Mutex::new);
        let read_back = self.read_back.get_or_try_init(allocate)?;
        let mut read_back = read_back.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = queue.lock_to_wait("read registers")?;
        let values = read_back.as_mut_slice();
        assert_eq!(values.len(), registers.len(), "registers of these passes");
        // SAFETY: the lengths are equal, and the wait outlasts the copy.
        unsafe { queue.copy_out(values, registers.ptr())? };
        queue.synchronize()?;
        Ok(values.to_vec())
    }

    /// Shares the sums of later passes with other GPUs.
    pub(super) fn share<T: Scalar>(&mut self, sums: &PeerSums) -> Result<(), Error> {
        let kernel = |name| self.gpu.kernel("vector", &format!("vector_peer_{name}_{}", T::KIND));
        let (dots, combine) = (kernel("dots")?, kernel("combine")?);
        self.peers = Some(PeerPasses { gpu: self.gpu, sums: sums.clone(), dots, combine });
        Ok(())
    }

    /// Returns the launch parameters of a pass over `vectors`, which have the same length.
    fn frame<T: Scalar>(&self, most: usize, vectors: &[Option<&DeviceVec<T>>]) -> Frame {
        let vectors = || vectors.iter().flatten();
        let len = vectors().next().map_or(0, |vector| vector.len());
        let per_vector16 = VECTOR_BYTES / size_of::<T>();
        let aligned = vectors().all(|vector| vector.address().is_multiple_of(VECTOR_BYTES as u64));
        let vectors16 = if aligned { len / per_vector16 } else { 0 };
        let rounds = len.div_ceil(per_vector16).div_ceil(BLOCK as usize * LOADS);
        let blocks = rounds.clamp(1, self.gpu.multiprocessors() * most);
        Frame { blocks: blocks as u32, len: len as u64, vectors16: vectors16 as u64 }
    }

    /// Keeps the memory of a pass alive as long as the graph that is being captured, if any.
    fn keep<T: Scalar>(
        &self,
        queue: &Queue,
        registers: &DeviceVec<f64>,
        vectors: &[Option<&DeviceVec<T>>],
    ) {
        if !queue.records() {
            return;
        }
        vectors
            .iter()
            .flatten()
            .filter_map(|vector| vector.share())
            .for_each(|memory| queue.keep(memory));
        registers.share().into_iter().for_each(|memory| queue.keep(memory));
        queue.keep(self.code.clone());
        self.peers.iter().for_each(|peers| peers.sums.keep(queue));
    }

    /// Sums of blocks and number of arrivals, for a pass on a queue.
    fn scratch(&self, queue: &Queue) -> Result<(Ptr<f64>, Ptr<u32>), Error> {
        let sums = self.scratch.on(queue)?;
        Ok((sums, sums.add(self.sums).cast()))
    }

    fn program(&self, program: Program) -> Ptr<u64> {
        self.code.ptr().add(program.first)
    }

    pub(super) fn dots<T: Scalar>(
        &self,
        queue: &Queue,
        registers: &DeviceVec<f64>,
        pass: &Dots<'_, T>,
    ) -> Result<(), Error> {
        let vectors = [Some(pass.of), pass.with, pass.and];
        let _lock = queue.lock()?;
        self.keep(queue, registers, &vectors);
        let frame = self.frame(DOTS_BLOCKS, &vectors);
        let second = if pass.and.is_some() { Partner::Other } else { Partner::Absent };
        let shape = shape(pass.then, true, pass.backward, [Partner::Other, second], pass.at);
        let [a, b, c] = addresses(vectors);
        if let Some(peers) = &self.peers {
            let launch = Launch::new(peers.blocks(frame)?, BLOCK).with(kernels::vector::PeerDots {
                a,
                b,
                c,
                n: frame.len,
                vectors16: frame.vectors16,
                registers: registers.ptr(),
                peers: peers.sums.words(),
                code: self.program(pass.then),
                shape: peers.first_shape(shape),
            });
            // SAFETY: as below; the group keeps the memory of the sums.
            unsafe { peers.dots.launch(queue, launch)? };
            return peers.conclude::<T>(queue, registers, self.program(pass.then), shape);
        }
        let (partials, arrivals) = self.scratch(queue)?;
        let launch = Launch::new(frame.blocks, BLOCK).with(kernels::vector::Dots {
            a,
            b,
            c,
            n: frame.len,
            vectors16: frame.vectors16,
            registers: registers.ptr(),
            partials,
            arrivals,
            code: self.program(pass.then),
            shape,
        });
        // SAFETY: the kernel is `vector_dots`; the vectors have one length, and every register used
        // exists.
        unsafe { self.dots.launch(queue, launch) }
    }

    pub(super) fn combine<T: Scalar>(
        &self,
        queue: &Queue,
        registers: &DeviceVec<f64>,
        y: &DeviceVec<T>,
        pass: &Combine<'_, T>,
    ) -> Result<(), Error> {
        let vectors =
            [Some(y), pass.add.map(|(_, u)| u), pass.and.map(|(_, v)| v), pass.diagonal, pass.with];
        let _lock = queue.lock()?;
        self.keep(queue, registers, &vectors);
        let frame = self.frame(COMBINE_BLOCKS, &vectors);
        let coefficients =
            coefficients([pass.keep, pass.add.map(|(c, _)| c), pass.and.map(|(c, _)| c)]);
        let shape = shape(pass.then, !pass.always, pass.backward, pass.sums, pass.at);
        let [y, u, v, d, w] = addresses(vectors);
        if let Some(peers) = self.peers.as_ref().filter(|_| pass.sums[0] != Partner::Absent) {
            let launch =
                Launch::new(peers.blocks(frame)?, BLOCK).with(kernels::vector::PeerCombine {
                    y,
                    u,
                    v,
                    d,
                    w,
                    n: frame.len,
                    vectors16: frame.vectors16,
                    coefficients,
                    registers: registers.ptr(),
                    peers: peers.sums.words(),
                    code: self.program(pass.then),
                    shape: peers.first_shape(shape),
                    scales_u: u32::from(pass.scaled),
                });
            // SAFETY: as below; the group keeps the memory of the sums.
            unsafe { peers.combine.launch(queue, launch)? };
            return peers.conclude::<T>(queue, registers, self.program(pass.then), shape);
        }
        let (partials, arrivals) = match pass.sums[0] {
            Partner::Absent => (Ptr::NULL, Ptr::NULL),
            _ => self.scratch(queue)?,
        };
        let launch = Launch::new(frame.blocks, BLOCK).with(kernels::vector::Combine {
            y,
            u,
            v,
            d,
            w,
            n: frame.len,
            vectors16: frame.vectors16,
            coefficients,
            registers: registers.ptr(),
            partials,
            arrivals,
            code: self.program(pass.then),
            shape,
            scales_u: u32::from(pass.scaled),
        });
        // SAFETY: the kernel is `vector_combine`; otherwise as above, and `y` is borrowed
        // exclusively.
        unsafe { self.combine.launch(queue, launch) }
    }

    pub(super) fn step<T: Scalar>(
        &self,
        queue: &Queue,
        registers: &DeviceVec<f64>,
        [x, p]: [&DeviceVec<T>; 2],
        pass: &Step<'_, T>,
    ) -> Result<(), Error> {
        let vectors = [Some(x), Some(p), Some(pass.r), pass.diagonal];
        let _lock = queue.lock()?;
        self.keep(queue, registers, &vectors);
        let frame = self.frame(STEP_BLOCKS, &vectors);
        let coefficients = coefficients([Some(pass.along), Some(pass.with), Some(pass.keep)]);
        let shape = shape(Program::default(), true, pass.backward, [Partner::Absent; 2], 0);
        let [x, p, r, d] = addresses(vectors);
        let launch = Launch::new(frame.blocks, BLOCK).with(kernels::vector::Step {
            x,
            p,
            r,
            d,
            n: frame.len,
            vectors16: frame.vectors16,
            coefficients,
            registers: registers.ptr(),
            shape,
        });
        // SAFETY: the kernel is `vector_step`; otherwise as above.
        unsafe { self.step.launch(queue, launch) }
    }
}

/// Number of thread blocks, at most `resident`, that have about equally many of `units`.
fn even_grid(units: usize, resident: usize) -> usize {
    units.max(1).div_ceil(units.max(1).div_ceil(resident))
}

impl PeerPasses {
    /// Blocks of a launch, which each take some of the blocks of the vectors.
    fn blocks(&self, frame: Frame) -> Result<u32, Error> {
        let sums = self.sums.blocks(frame.len as usize).ok_or_else(|| Error::VectorPass {
            message: format!("vectors of {} elements are not those of this part", frame.len),
        })?;
        Ok(even_grid(sums, self.gpu.multiprocessors() * COMBINE_BLOCKS) as u32)
    }

    /// Shape of a pass that leaves the program to a second one, if there is one.
    fn first_shape(&self, shape: u64) -> u64 {
        if self.sums.has_second_pass() { shape & !PROGRAM_LEN } else { shape }
    }

    /// Enqueues the second pass, if there is one: it adds the sums of all parts and runs the
    /// program.
    fn conclude<T: Scalar>(
        &self,
        queue: &Queue,
        registers: &DeviceVec<f64>,
        code: Ptr<u64>,
        shape: u64,
    ) -> Result<(), Error> {
        let Some(peers) = self.sums.transfer(queue)? else { return Ok(()) };
        let [a, b, c] = [Ptr::<T>::NULL; 3];
        let registers = registers.ptr();
        let pass = kernels::vector::PeerDots {
            a,
            b,
            c,
            n: 0,
            vectors16: 0,
            registers,
            peers,
            code,
            shape,
        };
        // SAFETY: the kernel is `vector_peer_dots`; it reads no vector.
        unsafe { self.dots.launch(queue, Launch::new(1, BLOCK).with(pass)) }
    }
}

/// The addresses of vectors, null for absent ones.
fn addresses<T: Scalar, const N: usize>(vectors: [Option<&DeviceVec<T>>; N]) -> [Ptr<T>; N] {
    vectors.map(|vector| vector.map_or(Ptr::NULL, DeviceVec::ptr))
}

/// Bits of a shape with the length of the program.
const PROGRAM_LEN: u64 = 0xFF;

/// `PassShape` of kernels/vector.cu.
fn shape(then: Program, guarded: bool, backward: bool, sums: [Partner; 2], at: u16) -> u64 {
    let flags = u64::from(guarded) << 8 | u64::from(backward) << 9;
    then.len as u64 | flags | (sums[0] as u64) << 16 | (sums[1] as u64) << 20 | u64::from(at) << 32
}

/// Packs three coefficients into a word.
fn coefficients(of: [Option<Coefficient>; 3]) -> u64 {
    of.into_iter().rev().fold(0, |word, c| word << 16 | c.map_or(ABSENT, |c| u64::from(c.bits())))
}

#[cfg(test)]
mod tests {
    use super::even_grid;

    #[test]
    fn blocks_have_equally_many_units() {
        let of = |units| even_grid(units, 396);
        assert_eq!([0, 1, 8, 396].map(of), [1, 1, 8, 396]);
        // Two for each block, not one or two.
        assert_eq!([397, 512, 1024].map(of), [199, 256, 342]);
    }
}
