//! Packed SELL: the meaning of `index:packed` in SELL, ELL (natural order of rows) and JDS (all
//! rows sorted by length).
//!
//! Slices of 32 rows store their columns in as few bytes as necessary, chosen for each slice: along
//! diagonals, which all lanes share, or as indices of 8, 16 or 32 bits, one for every run of 1, 2
//! or 3 consecutive columns. Nothing is padded.
//!
//! - `values:packed`: 8-bit codes if the matrix has at most 256 values, none if it has one; exact,
//!   compared by their bits.
//! - `values:bf16`, `values:f16`, `values:f32`: the same numbers in fewer bytes if that type holds
//!   all of them exactly, otherwise unchanged. They are widened when they are read, so that SpMVs
//!   are computed in the type of the matrix.
//!   [`SparseOpBuilder::value_precision`](crate::SparseOpBuilder::value_precision) rounds values so
//!   that the type holds them.
//! - `group:4`: four consecutive slots of a row together, for the loads of a GPU; on the CPU slower
//!   than the default, `group:1`.
//! - `long:L`: rows with more than L entries are long rows, which are stored separately and shared
//!   by threads; by default those that exceed the capacity of a slice.
//!
//! The layout is drawn in `src/encoding/mod.rs`.

pub use crate::encoding::{Packing, ValueEncoding};

use super::{
    Access, Arrays, DeviceMatrix, HostMatrix, NoArrays, Plan, PlanArgs, Target, Traffic,
    megabytes, millions, scattered, vector_bytes,
};
use crate::analysis::{Analysis, Distinct};
use crate::device::{BLOCK, Gpu, Out, Ptr, Queue, Residency, Scaling};
use crate::encoding::{self, DICTIONARY, Order, PackedSlices};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Precision, Scalar, ScalarKind};
use std::fmt::{self, Display};

/// Encoding of the slots of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Index {
    /// Arrays of the format, 32 bits per column.
    #[default]
    Plain,
    /// `index:packed`: slices of 32 rows with as few bytes as hold their columns, and their values,
    /// exactly.
    Packed(Packing),
}

/// Values of `index`.
const INDICES: &[(&str, Index)] = &[
    ("plain", Index::Plain),
    (
        "packed",
        Index::Packed(Packing { values: ValueEncoding::Plain, group: 1, long: Packing::MAX_LONG }),
    ),
];

/// Values of `values`.
const VALUES: &[(&str, ValueEncoding)] = &[
    ("plain", ValueEncoding::Plain),
    ("packed", ValueEncoding::Packed),
    ("bf16", ValueEncoding::Narrow(Precision::Bf16)),
    ("f16", ValueEncoding::Narrow(Precision::F16)),
    ("f32", ValueEncoding::Narrow(Precision::F32)),
];

/// Spelling of a value encoding in a plan.
fn value_word(values: ValueEncoding) -> &'static str {
    VALUES.iter().find(|word| word.1 == values).expect("every encoding is listed").0
}

impl Index {
    /// Parses `index` and the keys that belong to it.
    pub(crate) fn parse(args: &mut PlanArgs<'_>) -> Result<Self, Error> {
        let index = args.word("index", INDICES)?.unwrap_or_default();
        let (values, group, long) =
            (args.word("values", VALUES)?, args.number("group")?, args.number("long")?);
        let Self::Packed(default) = index else {
            let given = [
                ("values", values.is_some()),
                ("group", group.is_some()),
                ("long", long.is_some()),
            ];
            return match given.iter().find(|(_, given)| *given) {
                Some((key, _)) => Err(args.error(format!("`{key}` goes with index:packed"))),
                None => Ok(index),
            };
        };
        if let Some(group) = group.filter(|group| !Packing::GROUPS.contains(group)) {
            return Err(args.error(format!("`group` may be 1 or 4, not {group}")));
        }
        if let Some(long) = long.filter(|&long| long > Packing::MAX_LONG) {
            return Err(
                args.error(format!("`long` may be at most {}, not {long}", Packing::MAX_LONG))
            );
        }
        Ok(Self::Packed(Packing {
            values: values.unwrap_or(default.values),
            group: group.unwrap_or(default.group),
            long: long.unwrap_or(default.long),
        }))
    }
}

impl Display for Index {
    /// Writes the parameters that differ from the default; nothing for plain slots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Packed(packing) = self else { return Ok(()) };
        let default = Packing::default();
        f.write_str("index:packed")?;
        if packing.values != default.values {
            write!(f, ",values:{}", value_word(packing.values))?;
        }
        if packing.group != default.group {
            write!(f, ",group:{}", packing.group)?;
        }
        if packing.long != default.long {
            write!(f, ",long:{}", packing.long)?;
        }
        Ok(())
    }
}

/// Suffix of the names of kernels that also multiply long rows separately. A profile without such a
/// kernel predicts with the kernel of the same name without the suffix.
#[doc(hidden)]
pub const LONG_ROWS: &str = ".long";

/// Suffix of the names of kernels that multiply tiles and blocks of one value; the kernels of the
/// same name without the suffix are their fallback.
pub(crate) const SAME: &str = ".same";

/// Kernel that multiplies packed SELL, by the order of the rows, the encoding of the values and the
/// group; with the suffix [`LONG_ROWS`] if long rows that a slice could hold are stored separately.
pub(crate) fn kernel(order: Order, packing: Packing) -> &'static str {
    /// Names of an encoding: for natural order and sorted rows, groups of 1 and of 4, without and
    /// with separate long rows.
    macro_rules! names {
        ($encoding:literal) => {
            names!(@orders "sell.packed", "sell.packed.sorted", $encoding)
        };
        (@orders $natural:literal, $sorted:literal, $encoding:literal) => {
            [names!(@groups $natural, $encoding), names!(@groups $sorted, $encoding)]
        };
        (@groups $order:literal, $encoding:literal) => {
            [
                [concat!($order, $encoding), concat!($order, $encoding, ".long")],
                [concat!($order, $encoding, ".v4"), concat!($order, $encoding, ".v4.long")],
            ]
        };
    }
    let names = match packing.values {
        ValueEncoding::Plain => names!(""),
        ValueEncoding::Packed => names!(".dict"),
        ValueEncoding::Narrow(Precision::Bf16) => names!(".bf16"),
        ValueEncoding::Narrow(Precision::F16) => names!(".f16"),
        ValueEncoding::Narrow(Precision::F32) => names!(".f32"),
    };
    let (sorted, grouped) = (order != Order::Natural, packing.group != 1);
    names[usize::from(sorted)][usize::from(grouped)][usize::from(packing.long < Packing::MAX_LONG)]
}

/// Fallback kernels for one that was not measured, the nearest first: without separate long rows
/// and, if values take fewer bytes or none, with unchanged values, because they differ only in
/// bytes.
#[doc(hidden)]
pub fn fallback_kernels(kernel: &str) -> impl Iterator<Item = String> {
    let wide = Precision::ALL.iter().find_map(|precision| {
        let (order, rest) = kernel.split_once(&format!(".{precision}"))?;
        Some(format!("{order}{rest}"))
    });
    let whole = |kernel: &str| kernel.strip_suffix(LONG_ROWS).map(str::to_owned);
    let own = whole(kernel).or_else(|| kernel.strip_suffix(SAME).map(str::to_owned));
    let wide_whole = wide.as_deref().and_then(whole);
    own.into_iter().chain(wide).chain(wide_whole)
}

/// Kernel whose matrices are prepared like those of a plan, if the SpMV is predicted by another
/// kernel than the plan's own, `measured`: values of fewer bytes are packed by the host, also for a
/// GPU, and uploaded like those of plain SELL.
pub(crate) fn prepared_like(plan: &Plan, measured: &str, on: Target) -> Option<&'static str> {
    let (order, packing) = plan.slices()?;
    let ValueEncoding::Narrow(precision) = packing.values else { return None };
    let stands_in = on == Target::Gpu && !measured.contains(precision.name());
    stands_in.then_some(if order == Order::Natural { "sell" } else { "sell.sorted" })
}

/// Candidate encodings: on the CPU single slots, which are vectors; on a GPU also four consecutive
/// slots of a row, which a thread loads together, and codes only in this form. Values are packed if
/// there are few distinct ones; if there are many and a type of fewer bytes holds them, that type
/// is a candidate too. Rows that are much longer than others are stored separately.
pub(crate) fn candidates(analysis: &Analysis, on: Target) -> Vec<Packing> {
    let (plain, packed): (&[u32], &[u32]) = match on {
        Target::Cpu => (&[1], &[1]),
        Target::Gpu => (&[1, 4], &[4]),
    };
    let few = analysis.structure.distinct_values != Distinct::Many;
    let packed = if few { packed } else { &[] };
    let narrowest = if few { None } else { analysis.structure.exact_in.narrowest() };
    let with = |values| plain.iter().map(move |&group| (values, group));
    let all = with(ValueEncoding::Plain)
        .chain(packed.iter().map(|&group| (ValueEncoding::Packed, group)));
    let all = all.chain(narrowest.map(ValueEncoding::Narrow).into_iter().flat_map(with));
    all.map(|(values, group)| Packing { values, group, long: analysis.packing.long }).collect()
}

/// Work and memory traffic of one SpMV; exact if the analysis is
/// ([`Packability`](crate::analysis::Packability)), otherwise estimated.
pub(crate) fn traffic(
    order: Order,
    packing: Packing,
    analysis: &Analysis,
    scalar: ScalarKind,
) -> Traffic {
    let (rows, nrows) = (&analysis.rows, analysis.rows.nrows as u64);
    let (value_size, dictionary) = match (packing.values, analysis.structure.distinct_values) {
        (ValueEncoding::Narrow(precision), _)
            if analysis.structure.exact_in.contains(precision) =>
        {
            (precision.size(), 0)
        }
        (ValueEncoding::Plain | ValueEncoding::Narrow(_), _) | (_, Distinct::Many) => {
            (scalar.size(), 0)
        }
        (ValueEncoding::Packed, Distinct::Exactly(0 | 1)) => (0, 1),
        (ValueEncoding::Packed, Distinct::Exactly(_)) => (1, DICTIONARY as u64),
    };
    let coded = dictionary > 1;
    let sizes = analysis.packing.sizes(rows, order, packing.long);
    let classes = rows.histogram.classes();
    let long = &classes[classes.partition_point(|&(len, _)| len <= packing.long)..];
    let long_rows = long.iter().map(|&(_, rows)| rows).sum::<u64>();
    let (perm, window) = match order {
        Order::Natural => (0, 1),
        Order::Windows(window) => (nrows * size_of::<u32>() as u64, window as u64),
    };
    let arrays = encoding::slice_table_bytes(sizes.slices, long_rows > 0) + perm;
    let lanes = encoding::LANES as u64;
    Traffic {
        matrix_bytes: arrays
            + sizes.index_bytes
            + sizes.value_bytes(value_size)
            + dictionary * scalar.size() as u64
            + encoding::long_bytes(long, value_size),
        vector_bytes: vector_bytes(analysis, scalar),
        slots: sizes.entries,
        gathered: sizes.entries - sizes.entries_by_kind[0],
        guarded: sizes.guarded,
        tail: rows.nnz - rows.histogram.entries_up_to(packing.long),
        decoded: if coded { rows.nnz } else { 0 },
        rows: nrows,
        branchless: nrows,
        scattered: scattered(nrows, window),
        groups: sizes.slices + long_rows,
        serial: (sizes.depth * lanes).min(sizes.entries),
        depth: sizes.depth,
        overlapping: nrows.div_ceil(u64::from(BLOCK)),
        ..Traffic::default()
    }
}

/// Estimated time of an SpMV on an H200, in µs. If there are few slices, several warps share one.
pub(crate) fn estimate_us(packing: Packing, analysis: &Analysis, traffic: &Traffic) -> f64 {
    /// Steps that a warp processes at a time.
    const BATCH: u64 = 8;
    let rows = &analysis.rows;
    let (slices, steps) = (rows.nrows.div_ceil(encoding::LANES), traffic.depth as usize);
    let shift = encoding::warps_shift(slices, steps, traffic.matrix_bytes);
    let chain = 0.8 * traffic.depth.div_ceil(BATCH << shift) as f64;
    let masked = 0.8 * millions(traffic.guarded);
    let long = if u64::from(rows.max) > u64::from(packing.long) { 1.5 } else { 0.0 };
    1.5 + 0.17 * megabytes(traffic) + chain + 3.0 * millions(rows.nrows as u64) + masked + long
}

/// A matrix in the arrays of its format, or as packed SELL.
#[derive(Debug)]
pub(crate) enum MaybePacked<P, T> {
    /// In the arrays of its format.
    Plain(P),
    /// As packed SELL.
    Packed(Box<PackedSlices<T>>),
}

impl<P, T: Scalar> MaybePacked<P, T> {
    /// Packs a matrix as packed SELL.
    ///
    /// # Errors
    ///
    /// [`Error::PackedTooLarge`] if the matrix is too large for it.
    pub(crate) fn pack(a: CsrView<'_, T>, order: Order, packing: Packing) -> Result<Self, Error> {
        PackedSlices::pack(a, order, packing).map(|packed| Self::Packed(Box::new(packed)))
    }
}

impl<T: Scalar, P: HostMatrix<T>> HostMatrix<T> for MaybePacked<P, T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        match self {
            Self::Plain(plain) => plain.spmv(x, y),
            Self::Packed(packed) => packed.spmv(x, y),
        }
    }

    fn unpack(&self) -> CsrMatrix<T> {
        match self {
            Self::Plain(plain) => plain.unpack(),
            Self::Packed(packed) => packed.unpack(),
        }
    }

    fn access(&self) -> Option<&dyn Access<T>> {
        match self {
            Self::Plain(plain) => plain.access(),
            Self::Packed(_) => None,
        }
    }

    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        match self {
            Self::Plain(plain) => plain.access_mut(),
            Self::Packed(_) => None,
        }
    }

    fn values_mut(&mut self) -> Result<Arrays<&mut [T]>, NoArrays> {
        match self {
            Self::Plain(plain) => plain.values_mut(),
            Self::Packed(packed) => packed.values_mut().ok_or(NoArrays::CODED),
        }
    }

    fn packed_slices(&mut self) -> Option<&mut PackedSlices<T>> {
        match self {
            Self::Plain(_) => None,
            Self::Packed(packed) => Some(packed),
        }
    }

    fn matrix_bytes(&self) -> u64 {
        match self {
            Self::Plain(plain) => plain.matrix_bytes(),
            Self::Packed(packed) => packed.bytes(),
        }
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        match self {
            Self::Plain(plain) => plain.upload(gpu),
            Self::Packed(packed) => Ok(Box::new(encoding::Uploaded::new(packed, gpu)?)),
        }
    }
}

impl<T: Scalar> DeviceMatrix<T> for encoding::Uploaded<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.multiply(queue, x, Out::over(y)) }
    }

    unsafe fn spmv_scaled(
        &self,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
        by: Scaling<'_, T>,
    ) -> Result<bool, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.multiply(queue, x, Out::scaled(y, by)).map(|()| true) }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        Ok(self.to_host()?.unpack())
    }

    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        self.plain_values().ok_or(NoArrays::CODED)
    }

    fn slices(&self) -> Option<&Self> {
        Some(self)
    }

    fn device_bytes(&self) -> u64 {
        self.bytes()
    }

    fn residency(&self) -> Residency {
        self.residency()
    }
}
