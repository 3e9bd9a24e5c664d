//! JDS on a GPU: one thread per sorted row, or for several short ones.

use super::{HostJds, JdsLayout, JdsPlan, Launches, Section, SlotPositions};
use crate::device::{
    Buffer, CsrSource, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scaling, kernels,
};
use crate::formats::coo::DeviceTail;
use crate::formats::device_rows::{PackedRows, RowPacker, RowSlots};
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays, short_rows};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "jds";

/// A JDS matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceJds<T> {
    plan: JdsPlan,
    ncols: usize,
    perm: Buffer<u32>,
    /// Words of the table: bounds of the diagonals, or the sections.
    table: Buffer<u64>,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    /// True if a thread processes several rows.
    short: bool,
    kernel: RowKernel,
    /// Copy of the sections, if each has a launch of its own.
    each: Option<Vec<Section>>,
    tail: Option<DeviceTail<T>>,
}

impl Section {
    /// Number of words of a section in the table.
    const WORDS: usize = 5;

    /// Words in the order of `Section` in `kernels/jds.cu`.
    fn words(&self) -> [u64; Self::WORDS] {
        [self.first_row, self.rows, self.width, self.full, self.start].map(|word| word as u64)
    }

    fn from_words(words: [usize; Self::WORDS]) -> Self {
        let [first_row, rows, width, full, start] = words;
        Self { first_row, rows, width, full, start }
    }
}

impl SlotPositions {
    /// Words of the table in GPU memory.
    fn words(&self) -> Vec<u64> {
        match self {
            Self::Diagonals(jd_ptr) => jd_ptr.iter().map(|&at| at as u64).collect(),
            Self::Sections(sections) => sections.iter().flat_map(Section::words).collect(),
        }
    }
}

impl<T: Scalar> DeviceJds<T> {
    pub(super) fn new(host: &HostJds<T>, gpu: Gpu) -> Result<Self, Error> {
        let tail = host.tail.as_ref().filter(|tail| tail.matrix_bytes() > 0);
        let packed = PackedRows {
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            tail: tail.map(|tail| tail.upload_arrays(gpu)).transpose()?,
        };
        let (perm, table) = (gpu.upload(&host.perm)?, gpu.upload(&host.table.words())?);
        Self::from_buffers(gpu, host.plan, host.ncols, perm, (&host.table, table), packed)
    }

    /// Packs a matrix in GPU memory.
    pub(super) fn pack(plan: &JdsPlan, a: &CsrSource<T>) -> Result<Self, Error> {
        let packer = RowPacker::new(a)?;
        let (histogram, cut) = plan.cut(packer.histogram());
        let positions = SlotPositions::of(plan.layout, &histogram);
        let (perm, table) = (packer.sorted(a.nrows)?, a.gpu.upload(&positions.words())?);
        let on_gpu = match &positions {
            SlotPositions::Diagonals(_) => RowSlots::Diagonals(table.ptr()),
            // There are fewer than 2³² rows.
            SlotPositions::Sections(all) => RowSlots::Sections(table.ptr(), all.len() as u32),
        };
        let packed = packer.pack(perm.ptr(), on_gpu, positions.slots(), cut)?;
        Self::from_buffers(a.gpu, *plan, a.ncols, perm, (&positions, table), packed)
    }

    fn from_buffers(
        gpu: Gpu,
        plan: JdsPlan,
        ncols: usize,
        perm: Buffer<u32>,
        (positions, table): (&SlotPositions, Buffer<u64>),
        packed: PackedRows<T>,
    ) -> Result<Self, Error> {
        let nrows = perm.len();
        let short = matches!(positions, SlotPositions::Diagonals(jd_ptr)
            if short_rows::are_short(nrows, jd_ptr.len() - 1));
        let kernel = match plan.layout {
            JdsLayout::Diagonals if short => "jds_short_diagonals",
            JdsLayout::Diagonals => "jds_diagonals",
            JdsLayout::Sections(_, Launches::Fused) => "jds_sections",
            JdsLayout::Sections(_, Launches::Each) => "jds_section",
        };
        let each = match (positions, plan.layout) {
            (SlotPositions::Sections(sections), JdsLayout::Sections(_, Launches::Each)) => {
                Some(sections.clone())
            }
            _ => None,
        };
        let bytes = packed.bytes() + perm.bytes() + table.bytes();
        let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols));
        let tail =
            packed.tail.map(|tail| DeviceTail::of_arrays(gpu, (nrows, ncols), tail, residency));
        Ok(Self {
            plan,
            ncols,
            perm,
            table,
            col_idx: packed.col_idx,
            values: packed.values,
            short,
            kernel: RowKernel::new(
                gpu,
                Module::of(FILE, residency),
                residency,
                format!("{kernel}_{}", T::KIND),
            )?,
            each,
            tail: tail.transpose()?,
        })
    }

    /// Launch for all rows.
    fn launch_all(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Launch {
        let nrows = self.perm.len();
        let launch = short_rows::launch(nrows, self.short);
        match self.plan.layout {
            JdsLayout::Diagonals => launch.with(kernels::jds::Diagonals {
                jd_ptr: self.table.ptr(),
                count: self.table.len() as u32 - 1,
                perm: self.perm.ptr(),
                cols: self.col_idx.ptr(),
                values: self.values.ptr(),
                nrows: nrows as u32,
                x,
                out,
                l2_shares: self.kernel.residency().l2_shares(queue),
            }),
            JdsLayout::Sections(..) => launch.with(kernels::jds::Sections {
                sections: self.table.ptr(),
                count: (self.table.len() / Section::WORDS) as u32,
                perm: self.perm.ptr(),
                cols: self.col_idx.ptr(),
                values: self.values.ptr(),
                nrows: nrows as u32,
                ncols: self.ncols as u32,
                x,
                out,
                l2_shares: self.kernel.residency().l2_shares(queue),
            }),
        }
    }

    /// Launch for one section.
    fn launch_section(
        &self,
        section: &Section,
        queue: &Queue,
        x: Ptr<T>,
        out: Out<'_, T>,
    ) -> Launch {
        let [first_row, rows, width, full, start] = section.words();
        Launch::over(section.rows, 1).with(kernels::jds::Section {
            first_row,
            rows,
            width,
            full,
            start,
            perm: self.perm.ptr(),
            cols: self.col_idx.ptr(),
            values: self.values.ptr(),
            ncols: self.ncols as u32,
            x,
            out,
            l2_shares: self.kernel.residency().l2_shares(queue),
        })
    }

    /// Enqueues the SpMV without the tail.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let Some(sections) = &self.each else {
            // SAFETY: the kernel is `jds_diagonals`, `jds_short_diagonals` or `jds_sections`, by
            // the plan and the rows; the vectors are the caller's promise.
            return unsafe { self.kernel.launch(queue, &out, self.launch_all(queue, x, out)) };
        };
        for section in sections {
            // SAFETY: the kernel is `jds_section`; as above.
            unsafe {
                self.kernel.launch(queue, &out, self.launch_section(section, queue, x, out))?
            };
        }
        Ok(())
    }

    fn to_host(&self) -> Result<HostJds<T>, Error> {
        let words = self.table.to_vec()?.into_iter().map(|word| word as usize);
        let table = match self.plan.layout {
            JdsLayout::Diagonals => SlotPositions::Diagonals(words.collect()),
            JdsLayout::Sections(..) => {
                let words: Vec<usize> = words.collect();
                let (sections, _) = words.as_chunks::<{ Section::WORDS }>();
                SlotPositions::Sections(
                    sections.iter().map(|&words| Section::from_words(words)).collect(),
                )
            }
        };
        Ok(HostJds {
            plan: self.plan,
            ncols: self.ncols,
            perm: self.perm.to_vec()?,
            table,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_vec()?,
            consecutive: false,
            tail: self.tail.as_ref().map(DeviceTail::to_host).transpose()?,
            tasks: Box::default(),
        })
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceJds<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.multiply(queue, x, Out::over(y))? };
        // SAFETY: as above; every row of `y` is written.
        self.tail.as_ref().map_or(Ok(()), |tail| unsafe { tail.spmv_add(queue, x, y) })
    }

    /// Returns false with a tail, whose kernel adds to `y`.
    unsafe fn spmv_scaled(
        &self,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
        by: Scaling<'_, T>,
    ) -> Result<bool, Error> {
        if self.tail.is_some() {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        unsafe { self.multiply(queue, x, Out::scaled(y, by)).map(|()| true) }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        let tail = self.tail.as_ref().map_or((Ptr::NULL, 0), DeviceTail::values);
        Ok(ValueArrays::Plain([self.values.numbers(), tail]))
    }

    fn device_bytes(&self) -> u64 {
        let slots =
            self.perm.bytes() + self.table.bytes() + self.col_idx.bytes() + self.values.bytes();
        slots + self.tail.as_ref().map_or(0, DeviceTail::bytes)
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }

    #[cfg(test)]
    fn text(&self) -> Result<String, Error> {
        Ok(format!("{:?}", self.to_host()?))
    }
}
