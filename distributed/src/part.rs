//! A part of a distributed operator: its rows, and the messages with the other parts.

use crate::choice::{RowLengths, SlicedPlan, SummationOrder};
use crate::comm::{Communicator, agree, bytes_of, bytes_of_mut, gather_words, reported};
use crate::equality::{check_equal_words, hash, version};
use crate::findings::FileFindings;
use crate::gpu::{GpuPart, PartRows};
use crate::halo::Halo;
use crate::multivectors::{checked_vectors, transposed_copy};
use crate::rows::{RowSelection, RowSet};
use crate::sums::TreeSums;
use sparseop::device::fused::SharedSums;
use sparseop::device::peers::PeerGroup;
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{
    Device, DeviceVec, Error, Layout, Multivector, Scalar, SparseOpBuilder, Stream, listed,
    try_zeroed,
};
use sparseop_solvers::{Jacobi, SystemOperator, check_length, check_square};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Settings of a distributed operator.
#[derive(Debug, Clone)]
pub(crate) struct PartSettings {
    /// Builder of the operators of each part.
    pub(crate) builder: SparseOpBuilder,
    /// True if only plans are chosen whose results do not depend on the partition.
    pub(crate) same_bits: bool,
    /// GPUs of the parts; `None` on the CPU.
    pub(crate) group: Option<Arc<PeerGroup>>,
    /// Plan of all parts, if it is not chosen for the rows of each.
    pub(crate) sliced: Option<SlicedPlan>,
}

impl PartSettings {
    /// Parts on the CPU, with the same bits for every partition.
    pub(crate) fn new(builder: SparseOpBuilder) -> Self {
        Self { builder, same_bits: true, group: None, sliced: None }
    }

    /// Device of a part.
    pub(crate) fn device(&self, rank: usize) -> Device {
        self.group.as_ref().map_or(Device::Cpu, |group| group.device(rank))
    }
}

/// One part of a distributed operator: consecutive rows, and the corresponding elements of vectors.
/// Every part runs on a thread or in a process of its own. All parts make the same calls in the
/// same order, each with its own elements.
#[derive(Debug)]
pub struct PartOp<T: Scalar> {
    pub(crate) comm: Arc<dyn Communicator>,
    pub(crate) settings: PartSettings,
    /// Offsets of the parts: the first row and the first column of each, and their numbers.
    pub(crate) rows: Arc<[usize]>,
    pub(crate) columns: Arc<[usize]>,
    /// Rows that use own elements of `x` alone, and the others.
    pub(crate) interior: RowSet<T>,
    pub(crate) boundary: RowSet<T>,
    pub(crate) halo: Halo,
    /// Row offsets of the entries of this part.
    row_ptr: Vec<usize>,
    pub(crate) findings: FileFindings,
    sums: Arc<TreeSums>,
    buffers: Mutex<PartBuffers<T>>,
    pub(crate) transposed: OnceLock<Box<PartOp<T>>>,
    gpu: Option<GpuPart<T>>,
    device: Device,
}

/// Working memory of a product.
#[derive(Debug, Default)]
struct PartBuffers<T> {
    /// Elements that are sent, in the order of the receivers.
    sent: Vec<T>,
    /// Elements of `x` that boundary rows use.
    x: Vec<T>,
    interior: Vec<T>,
    boundary: Vec<T>,
}

impl<T: Scalar> PartOp<T> {
    /// Builds the part of this rank from its rows, whose columns are those of the whole matrix.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDiffer`], [`Error::RankFailed`], [`Error::Communication`], and those of
    /// [`SparseOpBuilder::build`].
    pub(crate) fn build(
        comm: Arc<dyn Communicator>,
        settings: &PartSettings,
        rows: Arc<[usize]>,
        columns: Arc<[usize]>,
        a: CsrView<'_, T>,
    ) -> Result<Self, Error> {
        check_ranks::<T>(&*comm, settings, &rows, &columns)?;
        let rank = comm.rank();
        agree(&*comm, check_shape(a, &rows[rank..rank + 2], columns[columns.len() - 1]))?;
        let whole = RowLengths::of_ranks(&*comm, a.row_ptr())?;
        let device = settings.device(rank);
        let order = settings.same_bits.then(|| SummationOrder::of(whole, &device));
        let own = columns[rank] as u32..columns[rank + 1] as u32;
        let slice_rows = settings.sliced.as_ref().map_or(1, |sliced| sliced.slice_rows);
        let (interior, boundary) = agree(&*comm, interior_and_boundary(a, &own, slice_rows))?;
        let halo = Halo::new(&*comm, agree(&*comm, used_columns(a, &boundary))?, &columns)?;
        let halo = match &settings.sliced {
            Some(_) => halo.with_window(boundary.len()),
            None => halo,
        };
        let builder = settings.builder.clone().device(device.clone());
        let row_set = |rows: Vec<u32>, a: RowSelection<'_, T>| {
            let a = a.view()?;
            let op = match (&settings.sliced, order) {
                (Some(sliced), _) => sliced.build(&builder, a)?,
                (None, Some(order)) => order.build(&builder, &device, a)?,
                (None, None) => builder.build(&a)?,
            };
            Ok::<_, Error>(RowSet { op, rows })
        };
        let sets = || {
            let shift = (own.start > 0).then_some(|column| column - own.start);
            let of_interior = RowSelection::new(a, &interior, own.len(), shift)?;
            let interior = row_set(interior, of_interior)?;
            let place = |column| halo.place(column);
            let of_boundary = RowSelection::new(a, &boundary, halo.width(), Some(place))?;
            Ok((interior, row_set(boundary, of_boundary)?))
        };
        let (interior, boundary) = agree(&*comm, sets())?;
        let row_ptr = agree(&*comm, listed(a.row_ptr().iter().copied()))?;
        let mut part = Self {
            sums: Arc::new(TreeSums::new(comm.clone(), &rows, settings.group.as_ref())?),
            row_ptr,
            findings: FileFindings::default(),
            settings: settings.clone(),
            buffers: Mutex::default(),
            transposed: OnceLock::new(),
            gpu: None,
            device,
            comm,
            rows,
            columns,
            interior,
            boundary,
            halo,
        };
        if let Some(group) = &settings.group {
            part.gpu = Some(GpuPart::new(part.part_rows(), group)?);
        }
        Ok(part)
    }

    /// The rows and their messages.
    fn part_rows(&self) -> PartRows<'_, T> {
        let sets = [&self.interior, &self.boundary];
        let first = self.own_columns().start as u32;
        PartRows { comm: &*self.comm, halo: &self.halo, first, sets }
    }

    /// Returns `result`, or an error if a GPU stopped waiting for another one's signal.
    pub(crate) fn checked<R>(&self, result: Result<R, Error>) -> Result<R, Error> {
        let checked = self.gpu.as_ref().map_or(Ok(()), |gpu| gpu.check(&*self.comm));
        reported(&*self.comm, result.and_then(|result| checked.map(|()| result)))
    }

    /// Oddities of the file from which the parts were read.
    pub fn file_findings(&self) -> FileFindings {
        self.findings
    }

    /// Number of this part, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.comm.size()
    }

    /// Numbers of rows and columns of the whole matrix.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows[self.parts()], self.columns[self.parts()])
    }

    /// Rows of this part: the elements of `y` that it computes.
    pub fn own_rows(&self) -> Range<usize> {
        self.rows[self.rank()]..self.rows[self.rank() + 1]
    }

    /// Columns of this part: the elements of `x` that its caller passes.
    pub fn own_columns(&self) -> Range<usize> {
        self.columns[self.rank()]..self.columns[self.rank() + 1]
    }

    /// Number of stored entries of the rows of this part.
    pub fn nnz(&self) -> u64 {
        self.interior.op.nnz() + self.boundary.op.nnz()
    }

    /// Jacobi preconditioner of the rows of this part.
    ///
    /// # Errors
    ///
    /// As [`Jacobi::of`], and [`Error::RankFailed`].
    pub fn jacobi(&self) -> Result<Jacobi<T>, Error> {
        check_square("a Jacobi preconditioner", self.shape())?;
        let first = self.own_rows().start;
        let of = |a: CsrMatrix<T>| {
            let diagonal = (0..a.nrows()).map(|row| {
                let (columns, values) = a.view().row(row);
                let entries = columns.iter().zip(values);
                let own = entries.filter(|(column, _)| **column as usize == first + row);
                own.map(|(_, value)| value.to_f64()).sum()
            });
            Jacobi::of_diagonal(first, diagonal)
        };
        agree(&*self.comm, self.to_csr().and_then(of))
    }

    /// Rows of this part, with the columns of the whole matrix and the entries in the order in
    /// which they were given.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub fn to_csr(&self) -> Result<CsrMatrix<T>, Error> {
        let count = self.row_ptr[self.row_ptr.len() - 1];
        let (mut columns, mut values) = (try_zeroed::<u32>(count)?, try_zeroed::<T>(count)?);
        let first = self.own_columns().start as u32;
        let mut copy = |set: &RowSet<T>, whole: &dyn Fn(u32) -> u32| {
            let a = set.op.to_csr()?;
            for (at, &row) in set.rows.iter().enumerate() {
                let (own, numbers) = a.view().row(at);
                let start = self.row_ptr[row as usize];
                let numbered = columns[start..].iter_mut().zip(own);
                numbered.for_each(|(to, &column)| *to = whole(column));
                values[start..start + numbers.len()].copy_from_slice(numbers);
            }
            Ok::<_, Error>(())
        };
        copy(&self.interior, &|column| column + first)?;
        copy(&self.boundary, &|column| self.halo.column(column))?;
        let row_ptr = self.row_ptr.clone();
        CsrMatrix::try_new(self.own_rows().len(), self.shape().1, row_ptr, columns, values)
    }

    /// `y = A x`, with the own elements of `x` and `y`. Interior rows are multiplied while the
    /// other parts send their elements of `x`, boundary rows after these have arrived.
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`], [`Error::RankFailed`], [`Error::Communication`]. If one rank
    /// returns an error, all ranks do.
    pub fn apply(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        for (vector, own, found) in
            [("x", self.own_columns(), x.len()), ("y", self.own_rows(), y.len())]
        {
            reported(&*self.comm, check_length(vector, own.len(), found, self.shape()))?;
        }
        self.multiply(1, x, y)
    }

    /// `Y = A X` for several vectors (SpMM); otherwise as [`apply`](Self::apply).
    ///
    /// # Errors
    ///
    /// [`Error::MultivectorMismatch`], [`Error::VectorsLength`], [`Error::RanksDiffer`]; otherwise
    /// as [`apply`](Self::apply).
    pub fn apply_multi(&self, x: Multivector<&[T]>, y: Multivector<&mut [T]>) -> Result<(), Error> {
        let lengths = [self.own_columns().len(), self.own_rows().len()];
        let (count, layout) = (x.count(), x.layout());
        let checked = checked_vectors(x, y, lengths, self.shape());
        let (x, y) = reported(&*self.comm, checked)?;
        let counts = gather_words(&*self.comm, &[count as u64])?;
        if let Some(rank) = counts.iter().position(|other| *other != counts[0]) {
            let (first, other) = (counts[0][0], counts[rank][0]);
            let message = format!("ranks 0 and {rank} multiply {first} and {other} vectors");
            return reported(&*self.comm, Err(Error::RanksDiffer { message }));
        }
        if layout == Layout::RowMajor || count <= 1 {
            return self.multiply(count, x, y);
        }
        let rows = transposed_copy(x, count);
        let mut products = reported(&*self.comm, try_zeroed(y.len()))?;
        self.multiply(count, &rows, &mut products)?;
        y.copy_from_slice(&transposed_copy(&products, self.own_rows().len()));
        Ok(())
    }

    /// Multiplies vectors in row-major order.
    fn multiply(&self, count: usize, x: &[T], y: &mut [T]) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        if let Some(gpu) = &self.gpu {
            return reported(&*self.comm, gpu.apply(self.part_rows(), count, x, y));
        }
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let PartBuffers { sent, x: used, interior, boundary } = &mut *buffers;
        let halo = &self.halo;
        sent.clear();
        for (_, elements) in &halo.sends {
            for &element in elements {
                sent.extend_from_slice(&x[element as usize * count..][..count]);
            }
        }
        used.resize(halo.columns.len() * count, T::ZERO);
        let first = self.own_columns().start;
        for at in halo.own.clone() {
            let own = halo.columns[at] as usize - first;
            used[at * count..][..count].copy_from_slice(&x[own * count..][..count]);
        }
        let (mut sends, mut rest) = (Vec::with_capacity(halo.sends.len()), &sent[..]);
        for (rank, elements) in &halo.sends {
            let (message, others) = rest.split_at(elements.len() * count);
            sends.push((*rank, bytes_of(message)));
            rest = others;
        }
        let (mut receives, mut rest) = (Vec::with_capacity(halo.receives.len()), &mut used[..]);
        let mut at = 0;
        for (rank, range) in &halo.receives {
            let (message, others) =
                rest[(range.start - at) * count..].split_at_mut(range.len() * count);
            receives.push((*rank, bytes_of_mut(message)));
            (rest, at) = (others, range.end);
        }
        let mut product = Ok(());
        self.comm.exchange(&sends, &mut receives, &mut || {
            product = self.interior.multiply(count, x, y, interior);
        })?;
        let product = product.and_then(|()| self.boundary.multiply(count, used, y, boundary));
        reported(&*self.comm, product)
    }

    /// Replaces the values of this part, in the order of its entries. The pattern does not change.
    ///
    /// # Errors
    ///
    /// [`Error::ValuesLength`], and nothing has changed; [`Error::NotUpdatable`] and
    /// [`Error::ValueRange`], as [`update_values`](sparseop::SparseOp::update_values), and
    /// [`Error::RankFailed`]: other parts may then have their new values.
    pub fn update_values(&mut self, values: &[T]) -> Result<(), Error> {
        let (expected, found) = (self.row_ptr[self.row_ptr.len() - 1], values.len());
        let checked = match expected == found {
            true => Ok(()),
            false => Err(Error::ValuesLength { expected, found }),
        };
        agree(&*self.comm, checked)?;
        let updated = self.interior.update(&self.row_ptr, values);
        let updated = updated.and_then(|()| self.boundary.update(&self.row_ptr, values));
        self.transposed = OnceLock::new();
        agree(&*self.comm, updated)
    }
}

impl<T: Scalar> SystemOperator<T> for PartOp<T> {
    fn shape(&self) -> (usize, usize) {
        self.shape()
    }

    fn own_rows(&self) -> Range<usize> {
        self.own_rows()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn apply_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        for (what, vector) in [("x", x), ("y", &*y)] {
            if vector.device() != self.device {
                let (expected, found) = (self.device.to_string(), vector.device().to_string());
                return reported(&*self.comm, Err(Error::WrongDevice { what, expected, found }));
            }
        }
        let Some(gpu) = &self.gpu else { return self.apply(x.host(), y.host_mut()) };
        reported(&*self.comm, gpu.multiply(self.part_rows(), stream, 1, x, y))
    }

    fn shared_sums(&self) -> Option<Arc<dyn SharedSums>> {
        Some(self.sums.clone())
    }
}

/// Numbers of the rows that use own columns alone, and of the others. The rows of `slice_rows`
/// consecutive ones, which have whole slices, are all in one of the two.
pub(crate) fn interior_and_boundary<T: Scalar>(
    a: CsrView<'_, T>,
    own: &Range<u32>,
    slice_rows: usize,
) -> Result<(Vec<u32>, Vec<u32>), Error> {
    // Interior rows from the front, the others from the back.
    let (mut rows, mut from, mut to) = (try_zeroed(a.nrows())?, 0, a.nrows());
    for first in (0..a.nrows()).step_by(slice_rows) {
        let slice = first..a.nrows().min(first + slice_rows);
        let is_interior = |row| a.row(row).0.iter().all(|column| own.contains(column));
        if slice.clone().all(is_interior) {
            let next = from + slice.len();
            rows[from..next].iter_mut().zip(slice).for_each(|(to, row)| *to = row as u32);
            from = next;
        } else {
            let next = to - slice.len();
            rows[next..to].iter_mut().rev().zip(slice).for_each(|(to, row)| *to = row as u32);
            to = next;
        }
    }
    let boundary = listed(rows[from..].iter().rev().copied())?;
    rows.truncate(from);
    Ok((rows, boundary))
}

/// Columns that some rows use, ascending.
fn used_columns<T: Scalar>(a: CsrView<'_, T>, rows: &[u32]) -> Result<Vec<u32>, Error> {
    let count = rows.iter().map(|&row| a.row_len(row as usize)).sum();
    let mut used = try_zeroed(count)?;
    let columns = rows.iter().flat_map(|&row| a.row(row as usize).0);
    used.iter_mut().zip(columns).for_each(|(to, column)| *to = *column);
    used.sort_unstable();
    used.dedup();
    used.shrink_to_fit();
    Ok(used)
}

/// Checks that all ranks build the same operator with the same version.
fn check_ranks<T: Scalar>(
    comm: &dyn Communicator,
    settings: &PartSettings,
    rows: &[usize],
    columns: &[usize],
) -> Result<(), Error> {
    // Sums of rows on the CPU follow the width of its vectors.
    let instructions = match settings.same_bits && settings.group.is_none() {
        true => hash(Device::Cpu.spec().instructions.as_bytes()),
        false => 0,
    };
    let parts = rows.len().min(columns.len()) as u64 - 1;
    let compared = [
        version(),
        ("bytes of a number", size_of::<T>() as u64),
        ("rows of the matrix", rows[rows.len() - 1] as u64),
        ("columns of the matrix", columns[columns.len() - 1] as u64),
        ("parts of the partition", parts),
        ("partitions of the rows", hash(bytemuck::cast_slice(rows))),
        ("partitions of the columns", hash(bytemuck::cast_slice(columns))),
        ("settings of the same bits", u64::from(settings.same_bits)),
        ("vector instructions of the CPU (SPARSEOP_SIMD=avx2 limits them)", instructions),
    ];
    check_equal_words(comm, &compared)?;
    if parts != comm.size() as u64 || rows.len() != columns.len() {
        let message = format!("there are {parts} parts for {} ranks", comm.size());
        return Err(Error::Partition { message });
    }
    Ok(())
}

/// Checks that the rows of a part are those of the partition.
fn check_shape<T: Scalar>(a: CsrView<'_, T>, rows: &[usize], ncols: usize) -> Result<(), Error> {
    let expected = (rows[1] - rows[0], ncols);
    if (a.nrows(), a.ncols()) == expected {
        return Ok(());
    }
    let message = format!(
        "the rows of this rank are {} x {}, but the partition has {} x {}",
        a.nrows(),
        a.ncols(),
        expected.0,
        expected.1
    );
    Err(Error::RanksDiffer { message })
}
