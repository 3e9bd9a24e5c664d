//! Misuse from C, and vectors on every device.

use crate::failure::{Failure, catch_panics};
use crate::memory::copy_text;
use crate::types::sparseop_status as Status;
use crate::*;
use sparseop::{Device, DeviceVec, Stream};
use sparseop_testkit::gpu;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::Barrier;

/// The 4 x 4 matrix of the documentation: 3 0 1 0, nothing, 0 2 4 1, 1 0 0 1.
const OFFSETS: [i64; 5] = [0, 2, 2, 5, 7];
const COLUMNS: [i32; 7] = [0, 2, 1, 2, 3, 0, 3];
const VALUES: [f32; 7] = [3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0];
const X: [f32; 4] = [1.0, 10.0, 100.0, 1000.0];
const AX: [f32; 4] = [103.0, 0.0, 1420.0, 1001.0];

fn matrix() -> sparseop_csr {
    sparseop_csr {
        nrows: 4,
        ncols: 4,
        nnz: 7,
        scalar: SPARSEOP_F32,
        offset_bits: 64,
        row_offsets: OFFSETS.as_ptr().cast(),
        columns: COLUMNS.as_ptr(),
        values: VALUES.as_ptr().cast(),
    }
}

fn options() -> sparseop_options {
    sparseop_options {
        device: SPARSEOP_DEVICE_CPU,
        ordinal: 0,
        expected_calls: 0,
        memory_limit: 0,
        flags: 0,
        plan: null(),
    }
}

fn made(
    matrix: &sparseop_csr,
    options: &sparseop_options,
) -> Result<*mut sparseop_operator, Status> {
    let mut operator = null_mut();
    // SAFETY: the arrays have their lengths.
    match unsafe { sparseop_create(matrix, options, &mut operator) } {
        Status::Ok => Ok(operator),
        status => {
            assert!(operator.is_null() && !last_error().is_empty());
            Err(status)
        }
    }
}

fn last_error() -> String {
    // SAFETY: a text of the library.
    unsafe { CStr::from_ptr(sparseop_last_error()) }.to_str().unwrap().to_owned()
}

#[test]
fn bad_matrices_and_options_are_refused_with_a_status() {
    let refused = |change: fn(&mut sparseop_csr, &mut sparseop_options), status, message: &str| {
        let (mut matrix, mut options) = (matrix(), options());
        change(&mut matrix, &mut options);
        assert_eq!(made(&matrix, &options), Err(status), "{message}");
        assert!(last_error().contains(message), "{}", last_error());
    };
    refused(|a, _| a.row_offsets = null(), Status::InvalidPointer, "row_ptr");
    refused(|a, _| a.columns = null(), Status::InvalidPointer, "col_idx");
    refused(|a, _| a.values = null(), Status::InvalidPointer, "null");
    refused(
        |a, _| a.columns = a.columns.wrapping_byte_add(1),
        Status::InvalidPointer,
        "no multiple of 4",
    );
    refused(|a, _| a.ncols = 3, Status::InvalidMatrix, "col_idx[4] is 3");
    refused(|a, _| a.nnz = 6, Status::InvalidMatrix, "row_ptr ends at 7");
    refused(|a, _| a.nrows = usize::MAX, Status::InvalidPointer, "do not fit");
    refused(|a, _| a.ncols = usize::MAX, Status::InvalidMatrix, "at most");
    refused(|a, _| a.scalar = 0, Status::InvalidArgument, "`scalar` is 0");
    refused(|a, _| a.offset_bits = 16, Status::InvalidArgument, "`offset_bits` is 16");
    refused(|_, o| o.device = 9, Status::InvalidArgument, "`device` is 9");
    refused(
        |_, o| (o.device, o.ordinal) = (SPARSEOP_DEVICE_CUDA, 99),
        Status::DeviceUnavailable,
        "cuda:99",
    );
    refused(|_, o| o.flags = 64, Status::InvalidArgument, "`flags` has unknown bits 64");
    refused(|_, o| o.plan = c"sel".as_ptr(), Status::InvalidArgument, "did you mean `sell`");
    refused(|_, o| o.plan = c"\xff".as_ptr(), Status::InvalidArgument, "not UTF-8");
    refused(|_, o| o.memory_limit = 1, Status::OutOfMemory, "memory limit of 1 bytes");
    // SAFETY: everything is null.
    unsafe {
        assert_eq!(sparseop_create(null(), null(), null_mut()), Status::InvalidPointer);
        let mut operator = null_mut();
        assert_eq!(sparseop_create(null(), null(), &mut operator), Status::InvalidPointer);
        assert_eq!(
            sparseop_create_from_device(&matrix(), null(), null(), &mut operator),
            Status::InvalidPointer
        );
        let mut stream = null_mut();
        assert_eq!(sparseop_stream_wrap(99, null_mut(), &mut stream), Status::DeviceUnavailable);
        assert_eq!(sparseop_stream_wrap(0, null_mut(), null_mut()), Status::InvalidPointer);
        sparseop_destroy(null_mut());
        sparseop_stream_destroy(null_mut());
    }
}

#[test]
fn bad_vectors_are_refused_and_left_alone() {
    let operator = made(&matrix(), &options()).unwrap();
    let (x, mut y) = (X, [7.0f32; 4]);
    let (xp, yp) = (x.as_ptr().cast::<c_void>(), y.as_mut_ptr().cast::<c_void>());
    // SAFETY: as many elements as stated, or a refusal before anything is read.
    unsafe {
        assert_eq!(sparseop_apply(null(), xp, 4, yp, 4), Status::InvalidPointer);
        assert_eq!(sparseop_apply(operator, null(), 4, yp, 4), Status::InvalidPointer);
        assert_eq!(sparseop_apply(operator, xp, 4, null_mut(), 4), Status::InvalidPointer);
        assert_eq!(
            sparseop_apply(operator, xp.wrapping_byte_add(2), 3, yp, 4),
            Status::InvalidPointer
        );
        assert_eq!(sparseop_apply(operator, xp, 3, yp, 4), Status::WrongLength);
        assert_eq!(sparseop_apply(operator, xp, usize::MAX, yp, 4), Status::InvalidArgument);
        assert_eq!(
            sparseop_apply(operator, yp.wrapping_byte_add(4), 3, yp, 4),
            Status::InvalidArgument
        );
        assert!(last_error().contains("in common"), "{}", last_error());
        assert_eq!(sparseop_apply_multi(operator, 1, 5, xp, 4, yp, 4), Status::InvalidArgument);
        assert_eq!(
            sparseop_apply_multi(operator, 2, SPARSEOP_ROW_MAJOR, xp, 4, yp, 4),
            Status::WrongLength
        );
        assert_eq!(sparseop_apply_transpose(operator, xp, 2, yp, 4), Status::WrongLength);
        assert_eq!(sparseop_update_values(operator, xp, 4), Status::WrongLength);
        assert_eq!(sparseop_memory_bytes(null()), 0);
        assert_eq!(sparseop_plan(null(), null_mut(), 0), 0);
        assert_eq!(
            sparseop_shape(null(), null_mut(), null_mut(), null_mut()),
            Status::InvalidPointer
        );
        assert_eq!(y, [7.0; 4]);
        sparseop_destroy(operator);
    }
}

#[test]
fn threads_multiply_with_one_operator_while_its_values_change() {
    const THREADS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 500 };
    let updatable = sparseop_options { flags: SPARSEOP_UPDATABLE, ..options() };
    let address = made(&matrix(), &updatable).unwrap().expose_provenance();
    let operator = || with_exposed_provenance_mut::<sparseop_operator>(address);
    let expected = [AX, AX.map(|value| 2.0 * value)];
    let begin = Barrier::new(THREADS + 1);
    let multiply = || {
        begin.wait();
        for round in 0..ROUNDS {
            let mut y = [f32::NAN; 4];
            let (xp, yp) = (X.as_ptr().cast(), y.as_mut_ptr().cast());
            // SAFETY: the operator lives until all threads have ended, and the vectors have their
            // lengths.
            let status = unsafe { sparseop_apply(operator(), xp, 4, yp, 4) };
            assert_eq!(status, Status::Ok, "{}", last_error());
            assert!(expected.contains(&y), "{y:?} in round {round}");
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(multiply)));
        begin.wait();
        for round in 0..ROUNDS {
            let values = VALUES.map(|value| value * (2 - round % 2) as f32);
            // SAFETY: the operator lives until all threads have ended, and there are 7 values.
            let status = unsafe { sparseop_update_values(operator(), values.as_ptr().cast(), 7) };
            assert_eq!(status, Status::Ok, "{}", last_error());
        }
    });
    // SAFETY: made above, and no thread uses it any more.
    unsafe { sparseop_destroy(operator()) };
}

#[test]
fn texts_are_cut_as_by_snprintf() {
    let options = sparseop_options { plan: c"csr(scalar)".as_ptr(), ..options() };
    let operator = made(&matrix(), &options).unwrap();
    let mut buffer = [1; 16];
    // SAFETY: the buffer has that capacity.
    unsafe {
        assert_eq!(sparseop_plan(operator, buffer.as_mut_ptr(), 16), 11);
        assert_eq!(CStr::from_ptr(buffer.as_ptr()), c"csr(scalar)");
        assert_eq!(sparseop_plan(operator, buffer.as_mut_ptr(), 4), 11);
        assert_eq!(CStr::from_ptr(buffer.as_ptr()), c"csr");
        assert!(sparseop_explain(operator, null_mut(), 0) > 100);
        assert_eq!(copy_text("aé", buffer.as_mut_ptr(), 3), 3);
        assert_eq!(CStr::from_ptr(buffer.as_ptr()), c"a", "no half a character");
        sparseop_destroy(operator);
    }
}

#[test]
fn a_panic_ends_at_the_border() {
    assert_eq!(catch_panics(|| panic!("so it {}", "goes")), Status::Panicked);
    assert!(last_error().contains("a defect of sparseop: so it goes"), "{}", last_error());
    assert_eq!(catch_panics(|| Err(Failure::new(Status::Failed, "with a \0"))), Status::Failed);
    assert_eq!(last_error(), "with a  ");
    std::thread::spawn(|| assert_eq!(last_error(), "", "every thread has its own")).join().unwrap();
}

/// Products through the pointers of a device.
fn products(device: &Device) {
    let on = |data: &[f32]| DeviceVec::from_slice(device, data).unwrap();
    let at = |v: &DeviceVec<f32>| v.address() as *const c_void;
    let own = Stream::new(device).unwrap();
    let (x, mut y, values) = (on(&X), on(&[f32::NAN; 4]), on(&VALUES.map(|value| 2.0 * value)));
    let yp = at(&y).cast_mut();
    let mut stream = null_mut();
    // SAFETY: memory and streams of the device that live until the end, with the stated lengths.
    unsafe {
        let operator = if let Device::Cuda(gpu) = device {
            let status = sparseop_stream_wrap(gpu.ordinal() as u32, own.raw(), &mut stream);
            assert_eq!(status, Status::Ok, "{}", last_error());
            // The bits of integers, which copies keep.
            let columns = on(&COLUMNS.map(|column| f32::from_bits(column as u32)));
            let offsets = on(&OFFSETS.map(|offset| f32::from_bits(offset as u32)));
            let (values, mut operator) = (on(&VALUES), null_mut());
            let there = sparseop_csr {
                offset_bits: 32,
                row_offsets: at(&offsets),
                columns: at(&columns).cast(),
                values: at(&values),
                ..matrix()
            };
            let options = sparseop_options { device: 0, flags: SPARSEOP_UPDATABLE, ..options() };
            let status = sparseop_create_from_device(&there, stream, &options, &mut operator);
            assert_eq!(status, Status::Ok, "{}", last_error());
            operator
        } else {
            made(&matrix(), &sparseop_options { flags: SPARSEOP_UPDATABLE, ..options() }).unwrap()
        };
        let right = |y: &DeviceVec<f32>, expected: [f32; 4], what: &str| {
            assert_eq!(y.to_vec().unwrap(), expected, "{what}");
        };
        let ok = |status| assert_eq!(status, Status::Ok, "{}", last_error());
        ok(sparseop_apply_device(operator, stream, at(&x), 4, yp, 4));
        right(&y, AX, "product");
        ok(sparseop_apply_with_device(operator, stream, 2.0, at(&x), 4, -1.0, yp, 4));
        right(&y, AX, "scaled");
        ok(sparseop_apply_transpose_device(operator, stream, at(&x), 4, yp, 4));
        right(&y, [1003.0, 200.0, 401.0, 1100.0], "transposed");
        let (multi, mut products) = (on(&[X, X].concat()), on(&[0.0; 8]));
        let place = at(&products).cast_mut();
        ok(sparseop_apply_multi_device(
            operator,
            stream,
            2,
            SPARSEOP_COLUMN_MAJOR,
            at(&multi),
            8,
            place,
            8,
        ));
        assert_eq!(products.to_vec().unwrap(), [AX, AX].concat());
        products.copy_from(&[0.0; 8]).unwrap();
        ok(sparseop_update_values_device(operator, stream, at(&values), 7));
        ok(sparseop_apply_device(operator, stream, at(&x), 4, yp, 4));
        right(&y, AX.map(|value| 2.0 * value), "new values");
        let mut host = [0.0f32; 4];
        ok(sparseop_apply(operator, X.as_ptr().cast(), 4, host.as_mut_ptr().cast(), 4));
        assert_eq!(host, AX.map(|value| 2.0 * value));
        y.copy_from(&[7.0; 4]).unwrap();
        assert_eq!(
            sparseop_apply_device(operator, stream, null(), 4, yp, 4),
            Status::InvalidPointer
        );
        assert_eq!(sparseop_apply_device(operator, stream, yp, 4, yp, 4), Status::InvalidArgument);
        if *device != Device::Cpu {
            assert_eq!(
                sparseop_apply_device(operator, null(), at(&x), 4, yp, 4),
                Status::InvalidPointer
            );
            let status = sparseop_apply_device(operator, stream, X.as_ptr().cast(), 4, yp, 4);
            assert_eq!(status, Status::InvalidPointer, "memory of the host");
        }
        right(&y, [7.0; 4], "refusals");
        sparseop_destroy(operator);
        sparseop_stream_destroy(stream);
    }
}

#[test]
fn products_through_pointers_of_the_cpu() {
    products(&Device::Cpu);
}

#[test]
fn products_through_pointers_of_a_gpu() {
    gpu().into_iter().for_each(products);
}
