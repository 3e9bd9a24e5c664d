//! Sampled slices of a matrix in the memory of a GPU, which encodes them itself.

use super::WINDOW;
use crate::Error;
use crate::analysis::GpuColumns;
use crate::device::kernels::sampled_slices::{PsellEncodeSlices, PsellEncodeWindows};
use crate::device::{BLOCK, HostArrays, Launch, Ptr};
use crate::formats::psell::index::{Encoded, LANES, SliceShape, filled};

/// Kernel file.
pub(in crate::formats::psell) const FILE: &str = "sampled_slices";

/// Slices that a GPU encodes. It writes to host memory.
pub(in crate::formats::psell) struct EncodedSlices<'a> {
    host: &'a HostArrays,
    count: usize,
    encoded: *const [u32; 4],
    hashes: *const u64,
    skip: *const u32,
}

impl<'a> EncodedSlices<'a> {
    /// Enqueues the encoding of slices in natural order, and of every `step`th slice of windows
    /// that are sorted. No row has more than `PORTION` entries but those beyond `split`. `None` if
    /// the host memory has no room.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(super) fn begin(
        a: &'a GpuColumns<'a>,
        split: u32,
        natural: &[usize],
        (windows, step): (&[usize], usize),
    ) -> Result<Option<[Self; 2]>, Error> {
        let Some(host) = a.host_arrays() else { return Ok(None) };
        // Slices of a window.
        let most = (WINDOW / LANES).div_ceil(step);
        let arrays = |numbers: &[usize], each: usize| {
            let (listed, from) = host.take::<u32>(numbers.len())?;
            let count = numbers.len() * each;
            let (encoded, found) = host.take::<[u32; 4]>(count)?;
            let (hashes, hash) = host.take::<u64>(count)?;
            let (skip, lanes) = host.take::<u32>(count)?;
            for (i, &number) in numbers.iter().enumerate() {
                // SAFETY: the array has as many elements, which only later launches read. Numbers
                // of slices have 32 bits.
                unsafe { listed.add(i).write(number as u32) };
            }
            Some((Self { host, count, encoded, hashes, skip }, (from, found, hash, lanes)))
        };
        let arrays = arrays(natural, 1).zip(arrays(windows, most));
        let Some(((natural, of_natural), (sorted, of_sorted))) = arrays else { return Ok(None) };
        let (row_ptr, col_idx, nrows) = (a.row_ptr(), a.col_idx(), a.nrows as u32);
        // As in `Packer::ncols`.
        let ncols = u32::try_from(a.ncols).unwrap_or(u32::MAX);
        let (slices, encoded, hashes, skip): (Ptr<u32>, _, _, _) = of_natural;
        let count = natural.count as u32;
        let launch = Launch::over(natural.count, LANES as u32).with(PsellEncodeSlices {
            row_ptr,
            col_idx,
            slices,
            count,
            nrows,
            ncols,
            split,
            encoded,
            hashes,
            skip,
        });
        let (windows, encoded, hashes, skip): (Ptr<u32>, _, _, _) = of_sorted;
        let blocks = (sorted.count / most) as u32;
        let sort = Launch::new(blocks, BLOCK).with(PsellEncodeWindows {
            row_ptr,
            col_idx,
            windows,
            step: step as u32,
            most: most as u32,
            nrows,
            ncols,
            split,
            encoded,
            hashes,
            skip,
        });
        // SAFETY: there is a warp for every slice in natural order, a block for every window, and
        // room for the results of all slices.
        unsafe {
            a.work.run(FILE, "psell_encode_slices", launch)?;
            a.work.run(FILE, "psell_encode_windows", sort)?;
        }
        host.mark()?;
        Ok(Some([natural, sorted]))
    }

    /// Waits for the slices, and returns each with a number that stands for its slots. Slices of
    /// long rows alone, which have no size, are left out.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(in crate::formats::psell) fn wait(self) -> Result<Vec<(Encoded, u64)>, Error> {
        let bytes = size_of::<[u32; 4]>() + size_of::<u64>() + size_of::<u32>();
        self.host.wait(self.count * bytes)?;
        let slice = |i: usize| {
            // SAFETY: the arrays have as many elements, which kernels have written.
            let (encoded, hash, long) =
                unsafe { (*self.encoded.add(i), *self.hashes.add(i), *self.skip.add(i)) };
            let [shape, base, stored, index_bytes] = encoded;
            let shape = SliceShape::from_bits(shape);
            let filled = filled(long).count_ones() * (shape.full * shape.step_columns) as u32;
            (long != u32::MAX)
                .then_some((Encoded { shape, base, stored, filled, index_bytes }, hash))
        };
        Ok((0..self.count).filter_map(slice).collect())
    }
}
