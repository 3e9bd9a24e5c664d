//! Tests of the operations of every plan: each operation either works, or is refused with a typed
//! error, whose suggested alternative must work. The `operations.md` of every format is compared
//! with the results.

use super::conformance::scattered;
use super::devices::gpu;
use super::spmm::apply_multi;
use super::{Oracle, x_vector};
use crate::device::Device;
use crate::formats::{FormatKind, Layout, Plan};
use crate::matrix::CsrMatrix;
use crate::{Error, SparseOp, SparseOpBuilder, Tuning};
use std::fs;
use std::path::Path;

/// Columns of the table.
const OPERATIONS: [&str; 7] = [
    "`αAx + βy`",
    "transposed",
    "SpMM",
    "`update_values`",
    "`get`, `row`, `position`",
    "`insert`",
    "bits repeat",
];

/// Columns that differ on a GPU, on which single entries cannot be found.
const ENTRIES: [usize; 2] = [4, 5];

/// Column of SpMM.
const SPMM: usize = 2;

/// Content of a cell.
type Cell = &'static str;
const YES: Cell = "yes";
const AGAIN: Cell = "yes, packed again";
const NO: Cell = "no";
const WHERE_EXACT: Cell = "where exact";
const WHERE_FEW: Cell = "where few";

/// Rows of several lengths with equal values: plans that pack values pack them here.
fn matrix() -> CsrMatrix<f64> {
    let mut row_ptr = vec![0];
    let mut col_idx: Vec<u32> = Vec::new();
    for row in 0..60usize {
        col_idx.extend((0..1 + row % 7).map(|k| ((row * 5 + k * 3) % 60) as u32));
        row_ptr.push(col_idx.len());
    }
    let values = vec![1.0; col_idx.len()];
    CsrMatrix::try_new(60, 60, row_ptr, col_idx, values).unwrap()
}

fn builder(device: &Device, plan: &str) -> SparseOpBuilder {
    SparseOpBuilder::new().device(device.clone()).tuning(Tuning::Fixed(plan.parse().unwrap()))
}

fn operator(device: &Device, plan: &str) -> SparseOp<f64> {
    builder(device, plan).build(&matrix()).unwrap()
}

fn check(oracle: &Oracle, y: &[f64], context: &str) {
    oracle.check(y).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
}

fn scaled(op: &SparseOp<f64>, context: &str) -> Cell {
    let (a, x, before) = (matrix(), x_vector(60), x_vector::<f64>(60));
    let mut y = before.clone();
    op.apply_with(2.0, &x, -0.5, &mut y).unwrap();
    check(&Oracle::of(a.view(), &x).scaled(2.0, -0.5, &before), &y, context);
    YES
}

fn transposed(op: &SparseOp<f64>, context: &str) -> Cell {
    let (bytes, x, mut y) = (op.memory_bytes(), x_vector(60), vec![f64::NAN; 60]);
    op.apply_transpose(&x, &mut y).unwrap();
    check(&Oracle::of(matrix().transpose().view(), &x), &y, context);
    if op.memory_bytes() > bytes { AGAIN } else { YES }
}

fn spmm(op: &SparseOp<f64>, context: &str) -> Cell {
    let (bytes, x) = (op.memory_bytes(), x_vector::<f64>(60));
    for (layout, k) in [(Layout::RowMajor, 1), (Layout::ColumnMajor, 60)] {
        let twice: Vec<f64> = match layout {
            Layout::RowMajor => x.iter().flat_map(|&x| [x, x]).collect(),
            Layout::ColumnMajor => x.repeat(2),
        };
        let mut y = vec![f64::NAN; 120];
        apply_multi(op, 2, &twice, &mut y, layout).unwrap();
        let second: Vec<f64> = match layout {
            Layout::RowMajor => y.iter().skip(k).step_by(2).copied().collect(),
            Layout::ColumnMajor => y[k..].to_vec(),
        };
        check(&Oracle::of(matrix().view(), &x), &second, context);
    }
    if op.memory_bytes() > bytes { AGAIN } else { YES }
}

fn updated(op: &mut SparseOp<f64>, context: &str) -> Cell {
    let mut b = matrix();
    b.values_mut().copy_from_slice(&x_vector(op.nnz() as usize));
    match op.update_values(b.values()) {
        Ok(()) => {
            assert_eq!(op.to_csr().unwrap(), b, "{context}");
            YES
        }
        Err(error @ Error::ValueInexact { .. }) => {
            let message = error.to_string();
            assert!(message.contains("`value_precision`"), "{message}: {context}");
            b.values_mut().iter_mut().enumerate().for_each(|(k, value)| *value = (k % 9) as f64);
            op.update_values(b.values()).unwrap();
            assert_eq!(op.to_csr().unwrap(), b, "{context}");
            WHERE_EXACT
        }
        Err(error) => {
            let message = error.to_string();
            assert!(matches!(error, Error::NotUpdatable { .. }), "{message}: {context}");
            assert!(
                message.contains("build the operator anew, or with `updatable(true)`"),
                "{message}"
            );
            let other = SparseOpBuilder::new().device(op.device().clone()).updatable(true);
            let mut other = other.build(&matrix()).unwrap();
            other.update_values(b.values()).unwrap();
            assert_eq!(other.to_csr().unwrap(), b, "{context}");
            // Only one distinct value here.
            b.values_mut().fill(2.5);
            if op.update_values(b.values()).is_err() {
                return NO;
            }
            assert_eq!(op.to_csr().unwrap(), b, "{context}");
            WHERE_FEW
        }
    }
}

fn entries(op: &SparseOp<f64>, context: &str) -> Cell {
    // The first slot with an entry, if slots can be counted.
    let places = 0..op.slots().unwrap_or(1);
    let position = places.map(|slot| op.position(slot)).find(|found| !matches!(found, Ok(None)));
    let found = (op.get(1, 5), op.row(1), position.unwrap(), op.slots());
    match found {
        (Ok(element), Ok(row), Ok(position), Ok(slots)) => {
            assert_eq!((element, row), (Some(1.0), vec![(5, 1.0), (8, 1.0)]), "{context}");
            assert!(
                position.is_some_and(|(row, col)| op.get(row, col).unwrap() == Some(1.0)),
                "{context}"
            );
            assert!(slots as u64 >= op.nnz(), "{context}");
            YES
        }
        (Err(get), Err(row), Err(position), Err(slots)) => {
            for error in [get, row, position, slots] {
                let message = error.to_string();
                assert!(matches!(error, Error::NoAccess { .. }), "{message}: {context}");
                assert!(message.contains("or look in `to_csr`"), "{message}");
            }
            assert_eq!(op.to_csr().unwrap(), matrix(), "{context}");
            NO
        }
        found => panic!("{found:?}: {context}"),
    }
}

/// Inserts one entry into every row.
fn inserted(op: &mut SparseOp<f64>, context: &str) -> Cell {
    let mut found = 0;
    for row in 0..60 {
        match op.insert(row, (row * 5 + 1) % 60, 3.0) {
            Ok(before) => {
                assert_eq!(
                    (before, op.get(row, (row * 5 + 1) % 60).unwrap()),
                    (None, Some(3.0)),
                    "{context}"
                );
                found += 1;
            }
            Err(error) => {
                let message = error.to_string();
                let (room, access) = (
                    matches!(error, Error::NoRoom { .. }),
                    matches!(error, Error::NoAccess { .. }),
                );
                assert!(room || access, "{message}: {context}");
                assert!(
                    message.contains(if room { "`hyb` and `coo` take any" } else { "`to_csr`" }),
                    "{message}"
                );
                for plan in ["hyb(width:2)", "coo"] {
                    operator(&Device::Cpu, plan).insert(row, (row * 5 + 1) % 60, 3.0).unwrap();
                }
            }
        }
    }
    match found {
        0 => NO,
        60 => "any",
        _ => "in padding",
    }
}

fn repeats(device: &Device, plan: &str, context: &str) -> Cell {
    let built = builder(device, plan).deterministic(true).build(&matrix());
    match built {
        Ok(_) => YES,
        Err(error) => {
            let message = error.to_string();
            assert!(matches!(error, Error::NotDeterministic { .. }), "{message}: {context}");
            assert!(message.contains("let `auto` choose one"), "{message}");
            let auto = SparseOpBuilder::new().device(device.clone()).deterministic(true);
            assert!(auto.build(&matrix()).unwrap().plan().is_deterministic());
            NO
        }
    }
}

/// Tests every operation with one plan.
fn cells(device: &Device, plan: &str) -> [Cell; 7] {
    let context = format!("{plan} on {device}");
    let mut op = operator(device, plan);
    [
        scaled(&op, &context),
        transposed(&op, &context),
        spmm(&op, &context),
        updated(&mut op, &context),
        entries(&operator(device, plan), &context),
        inserted(&mut operator(device, plan), &context),
        repeats(device, plan, &context),
    ]
}

/// Kind of a plan: plans of one kind are expected to have the same results. It is the format with
/// the parameters that change them.
fn kind(plan: &Plan) -> String {
    let text = plan.to_string();
    let parameters =
        ["values:packed", "values:bf16", "values:f16", "values:f32", "tail:host", "atomic"];
    let parameters: Vec<_> =
        parameters.into_iter().filter(|parameter| text.contains(parameter)).collect();
    match parameters.len() {
        0 => format!("`{}`", plan.format()),
        _ => format!("`{}({})`", plan.format(), parameters.join(",")),
    }
}

/// Results of a format on a device, one line for every kind of plan.
fn lines(format: FormatKind, device: &Device) -> Vec<(String, [Cell; 7])> {
    let mut lines: Vec<(String, [Cell; 7])> = Vec::new();
    for text in format.examples() {
        let (kind, found) = (kind(&text.parse().unwrap()), cells(device, text));
        match lines.iter().find(|line| line.0 == kind) {
            // On a GPU only some plans of a format use their own arrays for SpMM.
            Some(line) if *device != Device::Cpu => {
                let (mut line, mut found) = (line.1, found);
                for cell in [&mut line[SPMM], &mut found[SPMM]] {
                    *cell = if *cell == AGAIN { YES } else { *cell };
                }
                assert_eq!(line, found, "{text} on {device} is unlike other plans {kind}")
            }
            Some(line) => {
                assert_eq!(line.1, found, "{text} on {device} is unlike other plans {kind}")
            }
            None => lines.push((kind, found)),
        }
    }
    lines
}

#[test]
fn every_plan_does_what_the_documentation_says() {
    let row = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats");
    for format in FormatKind::ALL {
        let mut text = "# Operations\n\n".to_owned();
        text += &row(&[&["plans"], &OPERATIONS[..]].concat());
        text += &row(&["---"; 8]);
        for (kind, cells) in lines(*format, &Device::Cpu) {
            text += &row(&[&[kind.as_str()], &cells[..]].concat());
        }
        let file = folder.join(format.name()).join("operations.md");
        let written = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(written, text, "{}: the results are\n{text}", file.display());
    }
}

#[test]
fn a_gpu_refuses_single_entries_and_values_that_the_host_keeps_and_nothing_else() {
    let Some(gpu) = gpu() else { return };
    let of = |device| FormatKind::ALL.iter().flat_map(move |&format| lines(format, device));
    for ((kind, on_cpu), (_, on_gpu)) in of(&Device::Cpu).zip(of(gpu)) {
        for (column, (on_cpu, on_gpu)) in on_cpu.into_iter().zip(on_gpu).enumerate() {
            let context =
                format!("{}, {kind}: {on_cpu} on the CPU, {on_gpu} on {gpu}", OPERATIONS[column]);
            let host = kind.contains("tail:host") && column == 3;
            if ENTRIES.contains(&column) || host {
                assert_eq!(on_gpu, NO, "{context}");
            } else {
                assert_eq!(on_cpu == NO, on_gpu == NO, "{context}");
            }
        }
    }
}

#[test]
fn a_plan_without_graph_capture_is_an_error() {
    let Some(gpu) = gpu() else { return };
    let a = scattered::<f64>(500, 500, |row| row % 19);
    let op = builder(gpu, "hyb(width:2,tail:host)").build(&a).unwrap();
    let stream = crate::Stream::new(gpu).unwrap();
    let x = crate::DeviceVec::from_slice(gpu, &x_vector::<f64>(500)).unwrap();
    let mut y = crate::DeviceVec::zeros(gpu, 500).unwrap();
    let error = stream.capture(&mut || op.apply_device(&stream, &x, &mut y)).unwrap_err();
    assert!(
        matches!(error, Error::NotCapturable { .. })
            && error.to_string().contains("choose another plan")
    );
}
