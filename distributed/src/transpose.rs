//! Products with the transposed matrix, by a distributed operator of its own.

use crate::comm::{Communicator, agree, all_to_all, bytes_of, reported};
use crate::part::{PartOp, PartSettings};
use crate::partition::owner;
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Error, Scalar, filled, listed, reserved};
use std::ops::Range;

/// Entries of a matrix, in a fixed order.
#[derive(Debug)]
pub(crate) struct EntryArrays<T> {
    pub(crate) rows: Vec<u32>,
    pub(crate) columns: Vec<u32>,
    pub(crate) values: Vec<T>,
}

impl<T: Scalar> EntryArrays<T> {
    /// No entries, with room for `count`.
    pub(crate) fn reserved(count: usize) -> Result<Self, Error> {
        Ok(Self { rows: reserved(count)?, columns: reserved(count)?, values: reserved(count)? })
    }

    /// The entries of rows, of which the first is row `first` of the whole matrix.
    pub(crate) fn of_rows(a: CsrView<'_, T>, first: usize) -> Result<Self, Error> {
        let mut entries = Self::reserved(a.nnz())?;
        for row in 0..a.nrows() {
            let (columns, values) = a.row(row);
            for (&column, &value) in columns.iter().zip(values) {
                entries.push((first + row) as u32, column, value);
            }
        }
        Ok(entries)
    }

    pub(crate) fn push(&mut self, row: u32, column: u32, value: T) {
        self.rows.push(row);
        self.columns.push(column);
        self.values.push(value);
    }

    /// Sends every entry to the part with its row, and returns those of the own rows: in the order
    /// of the ranks, and in the order of each rank. Rows are then counted from the first own one.
    pub(crate) fn redistribute(
        self,
        comm: &dyn Communicator,
        offsets: &[usize],
    ) -> Result<Self, Error> {
        let messages = reported(comm, self.messages(offsets))?;
        let received = all_to_all(comm, &messages)?;
        drop(messages);
        if let Some(rank) = received.iter().position(|bytes| bytes.len() % Self::BYTES != 0) {
            let message = format!("rank {rank} sends entries of another scalar type");
            return reported(comm, Err(Error::RanksDiffer { message }));
        }
        let count = received.iter().map(|bytes| bytes.len() / Self::BYTES).sum();
        let mut own = reported(comm, Self::reserved(count))?;
        received.iter().for_each(|bytes| own.decode(bytes));
        Ok(own)
    }

    /// The entries in bytes, for each part.
    fn messages(self, offsets: &[usize]) -> Result<Vec<Vec<u8>>, Error> {
        let mut counts = vec![0; offsets.len() - 1];
        self.rows.iter().for_each(|&row| counts[owner(offsets, row as usize)] += 1);
        let to = counts.iter().map(|&count| Self::reserved(count));
        let mut to = to.collect::<Result<Vec<Self>, Error>>()?;
        for ((row, column), value) in self.rows.into_iter().zip(self.columns).zip(self.values) {
            let rank = owner(offsets, row as usize);
            to[rank].push(row - offsets[rank] as u32, column, value);
        }
        to.into_iter().map(|entries| entries.encode()).collect()
    }

    /// Bytes of an entry.
    const BYTES: usize = 2 * size_of::<u32>() + size_of::<T>();

    fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = reserved(self.rows.len() * Self::BYTES)?;
        bytes.extend_from_slice(bytemuck::cast_slice(&self.rows));
        bytes.extend_from_slice(bytemuck::cast_slice(&self.columns));
        bytes.extend_from_slice(bytes_of(&self.values));
        Ok(bytes)
    }

    /// Appends the entries of a message, for which there is room.
    fn decode(&mut self, bytes: &[u8]) {
        let count = bytes.len() / Self::BYTES;
        let (rows, rest) = bytes.split_at(count * size_of::<u32>());
        let (columns, values) = rest.split_at(count * size_of::<u32>());
        let words = |to: &mut Vec<u32>, bytes: &[u8]| {
            to.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
        };
        words(&mut self.rows, rows);
        words(&mut self.columns, columns);
        let before = self.values.len();
        self.values.resize(before + count, T::ZERO);
        crate::comm::bytes_of_mut(&mut self.values[before..]).copy_from_slice(values);
    }

    /// Matrix with the entries of each row in their order.
    pub(crate) fn to_csr(&self, nrows: usize, ncols: usize) -> Result<CsrMatrix<T>, Error> {
        let mut row_ptr = filled(nrows + 1, 0)?;
        self.rows.iter().for_each(|&row| row_ptr[row as usize + 1] += 1);
        for row in 0..nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        let (mut next, count) = (listed(row_ptr.iter().copied())?, self.rows.len());
        let (mut columns, mut values) = (filled(count, 0)?, filled(count, T::ZERO)?);
        for ((&row, &column), &value) in self.rows.iter().zip(&self.columns).zip(&self.values) {
            let at = &mut next[row as usize];
            (columns[*at], values[*at]) = (column, value);
            *at += 1;
        }
        CsrMatrix::try_new(nrows, ncols, row_ptr, columns, values)
    }
}

impl<T: Scalar> PartOp<T> {
    /// `y = Aᵀ x`: `x` has the [own rows](Self::own_rows), `y` the
    /// [own columns](Self::own_columns). The first such product distributes the transposed matrix,
    /// whose parts are packed like any other.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply), and those of
    /// [`SparseOpBuilder::build`](sparseop::SparseOpBuilder::build).
    pub fn apply_transpose(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        self.transposed()?.apply(x, y)
    }

    /// Operator of the transposed matrix, distributed at the first call.
    ///
    /// # Errors
    ///
    /// As [`apply_transpose`](Self::apply_transpose).
    pub fn transposed(&self) -> Result<&Self, Error> {
        if let Some(transposed) = self.transposed.get() {
            return Ok(transposed);
        }
        let a = self.transposed_rows()?;
        let (rows, columns) = (self.columns.clone(), self.rows.clone());
        let settings = PartSettings { sliced: None, ..self.settings.clone() };
        let built = Self::build(self.comm.clone(), &settings, rows, columns, a.view())?;
        Ok(self.transposed.get_or_init(|| Box::new(built)))
    }

    /// Rows of the transposed matrix that correspond to the [own columns](Self::own_columns), each
    /// with ascending columns.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`], [`Error::RankFailed`] and [`Error::Communication`].
    pub fn transposed_rows(&self) -> Result<CsrMatrix<T>, Error> {
        let own = agree(&*self.comm, self.to_csr())?;
        let entries = EntryArrays::of_rows(own.view(), self.own_rows().start);
        let EntryArrays { rows, columns, values } = reported(&*self.comm, entries)?;
        drop(own);
        let transposed = EntryArrays { rows: columns, columns: rows, values };
        let entries = transposed.redistribute(&*self.comm, &self.columns)?;
        let Range { start, end } = self.own_columns();
        agree(&*self.comm, entries.to_csr(end - start, self.shape().0))
    }
}
