//! Explanation of a distributed operator.

use crate::comm::{Communicator, gather_bytes, gather_words};
use crate::gpu::overlaps;
use crate::part::{PartOp, PartSettings};
use sparseop::{Error, Scalar};
use std::fmt::{self, Display};

/// Way of the elements between parts on the CPU.
pub(crate) const HOST_MEMORY: &str = "host memory";

/// Time of a message between two parts: `latency + bytes / bandwidth`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Seconds of an empty message.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// True if messages to several parts are sent at once.
    pub at_once: bool,
}

impl Link {
    /// Threads of a process: a copy in its memory, 10 GB/s after 5 µs.
    pub const MEMORY: Self = Self { latency: 5e-6, bandwidth: 10e9, at_once: false };
    /// GPUs of a host that access each other's memory over NVLink: 150 GB/s after 6.4 µs, most of
    /// them those of the kernels that send and receive, in a graph.
    pub const NVLINK: Self = Self { latency: 6.4e-6, bandwidth: 150e9, at_once: true };
    /// Hosts on a fast network: 12.5 GB/s (100 Gb/s) after 2 µs.
    pub const NETWORK: Self = Self { latency: 2e-6, bandwidth: 12.5e9, at_once: false };

    /// Seconds of `messages` messages with `bytes` bytes in all.
    pub fn seconds(self, messages: usize, bytes: u64) -> f64 {
        self.latency * messages as f64 + bytes as f64 / self.bandwidth
    }

    /// Seconds of the messages of a product with some neighbours.
    pub(crate) fn exchange(self, neighbours: usize, bytes: u64) -> f64 {
        self.seconds(if self.at_once { neighbours.min(1) } else { neighbours }, bytes)
    }

    /// Seconds of a sum over all parts: messages along a tree, or one to every part at once.
    pub(crate) fn sum(self, parts: usize) -> f64 {
        let steps = parts.next_power_of_two().trailing_zeros();
        match self.at_once {
            true => self.latency * SUM_LATENCY * f64::from(steps.min(1)),
            false => self.latency * f64::from(steps),
        }
    }
}

/// Share of the latency of a message that a sum takes whose kernels send to all parts: on two H200
/// an exchange and two sums take 8.9 µs in a graph, the exchange 6.4.
const SUM_LATENCY: f64 = 0.2;

/// Seconds of a product: interior rows and messages, at the same time if they overlap, then
/// boundary rows.
pub(crate) fn product_seconds([interior, boundary]: [f64; 2], messages: f64, overlap: bool) -> f64 {
    boundary + if overlap { longest([interior, messages]) } else { interior + messages }
}

/// The longest of some times, NaN if one of them is not known.
pub(crate) fn longest(seconds: impl IntoIterator<Item = f64>) -> f64 {
    let longer = |longest: f64, next: f64| match longest.is_nan() || next <= longest {
        true => longest,
        false => next,
    };
    seconds.into_iter().fold(0.0, longer)
}

/// The largest of some parts over their mean; 1 if all are empty.
pub(crate) fn imbalance(work: impl ExactSizeIterator<Item = u64>) -> f64 {
    let parts = work.len() as f64;
    let (total, most) = work.fold((0, 0), |(total, most), work| (total + work, work.max(most)));
    if total == 0 { 1.0 } else { most as f64 * parts / total as f64 }
}

/// Figures of one part of a distributed operator.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PartSummary {
    /// Number of rows.
    pub rows: u64,
    /// Number of stored entries.
    pub nnz: u64,
    /// Number of rows that use elements of other parts.
    pub boundary_rows: u64,
    /// Bytes that a product receives from other parts.
    pub halo_bytes: u64,
    /// Bytes that a product sends to other parts.
    pub sent_bytes: u64,
    /// Parts that it sends to or receives from.
    pub neighbours: u64,
    /// True if interior rows are multiplied while the parts exchange elements.
    pub overlap: bool,
    /// Predicted seconds of the products of the interior and of the boundary rows; NaN if the
    /// profile does not predict them.
    pub seconds: [f64; 2],
    /// Plans of the interior and of the boundary rows; empty without such rows.
    pub plans: [String; 2],
}

impl PartSummary {
    pub(crate) fn of<T: Scalar>(part: &PartOp<T>) -> Self {
        let sets = [&part.interior, &part.boundary];
        let bytes = size_of::<T>();
        Self {
            rows: part.own_rows().len() as u64,
            nnz: part.nnz(),
            boundary_rows: part.boundary.rows.len() as u64,
            halo_bytes: (part.halo.received() * bytes) as u64,
            sent_bytes: (part.halo.sent() * bytes) as u64,
            neighbours: part.halo.neighbours().len() as u64,
            overlap: overlaps(&part.settings.device(part.rank()), part.interior.op.nnz()),
            seconds: sets.map(|set| set.predicted().unwrap_or(f64::NAN)),
            plans: sets.map(|set| match set.rows.is_empty() {
                true => String::new(),
                false => set.op.plan().to_string(),
            }),
        }
    }

    /// Gathers the figures of all ranks.
    pub(crate) fn gather(&self, comm: &dyn Communicator) -> Result<Vec<Self>, Error> {
        let [interior, boundary] = self.seconds.map(f64::to_bits);
        let own = [
            self.rows,
            self.nnz,
            self.boundary_rows,
            self.halo_bytes,
            self.sent_bytes,
            self.neighbours,
            u64::from(self.overlap),
            interior,
            boundary,
        ];
        let words = gather_words(comm, &own)?;
        let plans = gather_bytes(comm, self.plans.join("\n").as_bytes())?;
        let all = words.into_iter().zip(plans).map(|(words, plans)| {
            let plans = String::from_utf8_lossy(&plans).into_owned();
            let (interior, boundary) = plans.split_once('\n').unwrap_or((&plans, ""));
            Self {
                rows: words[0],
                nnz: words[1],
                boundary_rows: words[2],
                halo_bytes: words[3],
                sent_bytes: words[4],
                neighbours: words[5],
                overlap: words[6] != 0,
                seconds: [words[7], words[8]].map(f64::from_bits),
                plans: [interior.to_owned(), boundary.to_owned()],
            }
        });
        Ok(all.collect())
    }

    /// Predicted seconds of the messages of a product.
    pub fn exchange_seconds(&self, link: Link) -> f64 {
        link.exchange(self.neighbours as usize, self.halo_bytes.max(self.sent_bytes))
    }

    /// Predicted seconds of a product: interior rows and messages, at the same time if they
    /// [overlap](Self::overlap), then boundary rows.
    pub fn product_seconds(&self, link: Link) -> f64 {
        product_seconds(self.seconds, self.exchange_seconds(link), self.overlap)
    }
}

impl PartSettings {
    /// Way of the elements between parts.
    pub(crate) fn transport(&self) -> &'static str {
        match &self.group {
            None => HOST_MEMORY,
            Some(group) if group.is_network() => "NCCL",
            Some(_) => "peer access",
        }
    }
}

impl<T: Scalar> PartOp<T> {
    /// A link like that between the parts, if they are ranks.
    pub fn link(&self) -> Link {
        match &self.settings.group {
            Some(group) if !group.is_network() => Link::NVLINK,
            _ => Link::NETWORK,
        }
    }

    /// Explanation of all parts; every rank calls it and receives it.
    ///
    /// # Errors
    ///
    /// [`Error::RankFailed`] and [`Error::Communication`].
    pub fn explain(&self, link: Link) -> Result<DistributedExplanation, Error> {
        let parts = PartSummary::of(self).gather(&*self.comm)?;
        Ok(DistributedExplanation::new(self.shape(), parts, link, self.settings.transport()))
    }
}

/// Rows, plans, messages and predicted times of the parts of an operator. `Display` writes a table.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DistributedExplanation {
    /// Numbers of rows and columns of the matrix.
    pub shape: (usize, usize),
    /// The parts.
    pub parts: Vec<PartSummary>,
    /// Link that the times of messages are predicted for.
    pub link: Link,
    /// Way of the elements between parts: `host memory`, `peer access` of GPUs, or `NCCL`.
    pub transport: &'static str,
}

impl DistributedExplanation {
    pub(crate) fn new(
        shape: (usize, usize),
        parts: Vec<PartSummary>,
        link: Link,
        transport: &'static str,
    ) -> Self {
        Self { shape, parts, link, transport }
    }

    /// Imbalance: work of the largest part, entries and rows, over the mean. 1 without rows.
    pub fn imbalance(&self) -> f64 {
        imbalance(self.parts.iter().map(|part| part.nnz + part.rows))
    }

    /// Predicted seconds of a product: those of the slowest part. NaN if the profile does not
    /// predict one.
    pub fn product_seconds(&self) -> f64 {
        longest(self.parts.iter().map(|part| part.product_seconds(self.link)))
    }
}

impl Display for DistributedExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |seconds: f64| match seconds.is_finite() {
            true => format!("{:.1}", seconds * 1e6),
            false => "?".to_owned(),
        };
        let nnz: u64 = self.parts.iter().map(|part| part.nnz).sum();
        let (nrows, ncols) = self.shape;
        writeln!(
            f,
            "{nrows} x {ncols}, {nnz} entries in {} parts, imbalance {:.2}; predicted product {} \
             µs, with messages by {}: {:.1} µs + {:.1} GB/s",
            self.parts.len(),
            self.imbalance(),
            us(self.product_seconds()),
            self.transport,
            self.link.latency * 1e6,
            self.link.bandwidth * 1e-9,
        )?;
        writeln!(
            f,
            "{:>4} {:>10} {:>12} {:>13} {:>11} {:>11} {:>10} {:>9} {:>9}  plans",
            "part",
            "rows",
            "entries",
            "boundary rows",
            "halo bytes",
            "neighbours",
            "interior",
            "boundary",
            "messages"
        )?;
        for (number, part) in self.parts.iter().enumerate() {
            let [interior, boundary] = part.seconds.map(us);
            let plans: Vec<&str> =
                part.plans.iter().map(String::as_str).filter(|plan| !plan.is_empty()).collect();
            writeln!(
                f,
                "{number:>4} {:>10} {:>12} {:>13} {:>11} {:>11} {interior:>7} µs {boundary:>6} \
                 µs {:>6} µs  {}",
                part.rows,
                part.nnz,
                part.boundary_rows,
                part.halo_bytes,
                part.neighbours,
                us(part.exchange_seconds(self.link)),
                plans.join(", "),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_not_known_makes_none() {
        assert_eq!(longest([1.0, 3.0, 2.0]), 3.0);
        assert!(longest([1.0, f64::NAN, 2.0]).is_nan());
        assert!(product_seconds([f64::NAN, 0.0], 1.0, true).is_nan());
        assert_eq!(product_seconds([2.0, 1.0], 3.0, true), 4.0);
        assert_eq!(product_seconds([2.0, 1.0], 3.0, false), 6.0);
    }

    #[test]
    fn sums_take_a_message_along_a_tree_or_less() {
        assert_eq!([1, 2, 4096].map(|parts| Link::NETWORK.sum(parts)), [0.0, 2e-6, 24e-6]);
        assert_eq!(Link::NVLINK.sum(1), 0.0);
        assert_eq!(Link::NVLINK.sum(8), Link::NVLINK.sum(2));
    }
}
