//! Communication plan of a part: the elements of other parts that its products read.

use crate::comm::{Communicator, all_to_all};
use crate::partition::owner;
use sparseop::Error;
use std::ops::Range;

/// Columns of the boundary rows of a part, and the messages with their elements.
#[derive(Debug)]
pub(crate) struct Halo {
    /// Columns that boundary rows use, ascending: the elements that are exchanged.
    pub(crate) columns: Vec<u32>,
    /// Columns of the operator of the boundary rows: those that are used, or all from the first to
    /// the last one, which keeps the distances among columns.
    pub(crate) window: Option<Range<u32>>,
    /// Range of the own columns among these.
    pub(crate) own: Range<usize>,
    /// Other parts, and the range of the columns that each has.
    pub(crate) receives: Vec<(usize, Range<usize>)>,
    /// Other parts, and the own elements that each uses, counted from the first own one.
    pub(crate) sends: Vec<(usize, Vec<u32>)>,
}

impl Halo {
    /// Agrees with the other parts on the messages. `columns` are ascending, and `offsets` has the
    /// first column of each part.
    pub(crate) fn new(
        comm: &dyn Communicator,
        columns: Vec<u32>,
        offsets: &[usize],
    ) -> Result<Self, Error> {
        let rank = comm.rank();
        let place = |column: usize| columns.partition_point(|&c| (c as usize) < column);
        let own = place(offsets[rank])..place(offsets[rank + 1]);
        let mut receives: Vec<(usize, Range<usize>)> = Vec::new();
        let mut wanted = vec![Vec::new(); comm.size()];
        for (at, &column) in columns.iter().enumerate() {
            if own.contains(&at) {
                continue;
            }
            let from = owner(offsets, column as usize);
            let local = column - offsets[from] as u32;
            wanted[from].extend_from_slice(&local.to_ne_bytes());
            match receives.last_mut() {
                Some((last, range)) if *last == from => range.end = at + 1,
                _ => receives.push((from, at..at + 1)),
            }
        }
        let asked = all_to_all(comm, &wanted)?;
        let sends = asked.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty());
        let sends = sends.map(|(to, bytes)| {
            (to, bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
        });
        Ok(Self { own, receives, sends: sends.collect(), columns, window: None })
    }

    /// Gives the operator of `rows` boundary rows all columns from the first to the last one that
    /// is used, at least as many as rows.
    pub(crate) fn with_window(self, rows: usize) -> Self {
        let first = self.columns.first().copied().unwrap_or(0);
        let end = self.columns.last().map_or(0, |&last| last + 1);
        Self { window: Some(first..end.max(first + rows as u32)), ..self }
    }

    /// Number of columns of the operator of the boundary rows.
    pub(crate) fn width(&self) -> usize {
        self.window.as_ref().map_or(self.columns.len(), Range::len)
    }

    /// Column of this operator for a used column of the whole matrix.
    pub(crate) fn place(&self, column: u32) -> u32 {
        match &self.window {
            Some(window) => column - window.start,
            None => self.columns.partition_point(|&c| c < column) as u32,
        }
    }

    /// Column of the whole matrix for a column of this operator.
    pub(crate) fn column(&self, place: u32) -> u32 {
        match &self.window {
            Some(window) => window.start + place,
            None => self.columns[place as usize],
        }
    }

    /// Place of every used column, unless they are consecutive.
    pub(crate) fn places(&self) -> Vec<u32> {
        let used = self.columns.iter().filter(|_| self.window.is_some());
        used.map(|&column| self.place(column)).collect()
    }

    /// Number of elements that a product receives.
    pub(crate) fn received(&self) -> usize {
        self.columns.len() - self.own.len()
    }

    /// Number of elements that a product sends.
    pub(crate) fn sent(&self) -> usize {
        self.sends.iter().map(|(_, elements)| elements.len()).sum()
    }

    /// Parts that this one sends to or receives from, ascending.
    pub(crate) fn neighbours(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> = self.sends.iter().map(|send| send.0).collect();
        ranks.extend(self.receives.iter().map(|receive| receive.0));
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}
