//! JDS on a GPU: one thread per sorted row.

use super::{HostJds, JdsLayout, JdsPlan, Launches, Section, SlotPositions};
use crate::device::{
    Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scaling, kernels,
};
use crate::formats::{Arrays, DeviceMatrix, HostMatrix, NoArrays, coo::DeviceTail};
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
    kernel: RowKernel,
    /// Copy of the sections, if each has a launch of its own.
    each: Option<Vec<Section>>,
    tail: Option<DeviceTail<T>>,
}

impl Section {
    /// Words of a row of the table.
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

impl<T: Scalar> DeviceJds<T> {
    pub(super) fn new(host: &HostJds<T>, gpu: Gpu) -> Result<Self, Error> {
        let kernel = match host.plan.layout {
            JdsLayout::Diagonals => "jds_diagonals",
            JdsLayout::Sections(_, Launches::Fused) => "jds_sections",
            JdsLayout::Sections(_, Launches::Each) => "jds_section",
        };
        let words: Vec<u64> = match &host.table {
            SlotPositions::Diagonals(jd_ptr) => jd_ptr.iter().map(|&at| at as u64).collect(),
            SlotPositions::Sections(sections) => sections.iter().flat_map(Section::words).collect(),
        };
        let each = match (&host.table, host.plan.layout) {
            (SlotPositions::Sections(sections), JdsLayout::Sections(_, Launches::Each)) => {
                Some(sections.clone())
            }
            _ => None,
        };
        let residency = Residency::of::<T>(gpu, host.matrix_bytes(), (host.perm.len(), host.ncols));
        let tail = host.tail.as_ref().filter(|tail| tail.matrix_bytes() > 0);
        Ok(Self {
            plan: host.plan,
            ncols: host.ncols,
            perm: gpu.upload(&host.perm)?,
            table: gpu.upload(&words)?,
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            kernel: RowKernel::new(
                gpu,
                Module::of(FILE, residency),
                residency,
                format!("{kernel}_{}", T::KIND),
            )?,
            each,
            tail: tail.map(|tail| DeviceTail::new(tail, gpu, residency)).transpose()?,
        })
    }

    /// Launch for all rows.
    fn at_once(&self, x: Ptr<T>, out: Out<'_, T>) -> Launch {
        let nrows = self.perm.len();
        let launch = Launch::over(nrows, 1);
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
                l2_shares: self.kernel.residency().shares(),
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
                l2_shares: self.kernel.residency().shares(),
            }),
        }
    }

    /// Launch for one section.
    fn alone(&self, section: &Section, x: Ptr<T>, out: Out<'_, T>) -> Launch {
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
            l2_shares: self.kernel.residency().shares(),
        })
    }

    /// Enqueues the SpMV without the tail.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let Some(sections) = &self.each else {
            // SAFETY: the kernel is `jds_diagonals` or `jds_sections`, by the plan; the vectors are
            // the caller's promise.
            return unsafe { self.kernel.launch(queue, &out, self.at_once(x, out)) };
        };
        for section in sections {
            // SAFETY: the kernel is `jds_section`; as above.
            unsafe { self.kernel.launch(queue, &out, self.alone(section, x, out))? };
        }
        Ok(())
    }

    fn to_host(&self) -> Result<HostJds<T>, Error> {
        let words = self.table.to_vec()?.into_iter().map(|word| word as usize);
        let table = match self.plan.layout {
            JdsLayout::Diagonals => SlotPositions::Diagonals(words.collect()),
            JdsLayout::Sections(..) => {
                let words: Vec<usize> = words.collect();
                let (lines, _) = words.as_chunks::<{ Section::WORDS }>();
                SlotPositions::Sections(
                    lines.iter().map(|&line| Section::from_words(line)).collect(),
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
            parts: Box::default(),
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

    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        let tail = self.tail.as_ref().map_or((Ptr::NULL, 0), DeviceTail::values);
        Ok([(self.values.ptr(), self.values.len()), tail])
    }

    fn device_bytes(&self) -> u64 {
        let slots =
            self.perm.bytes() + self.table.bytes() + self.col_idx.bytes() + self.values.bytes();
        slots + self.tail.as_ref().map_or(0, DeviceTail::bytes)
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}
