//! The GPU kernels compile for every generation and fit into registers. Needs NVRTC, the CUDA compiler in a library, but no GPU.

use sparseop::Error;
use sparseop::testing::kernels::{KernelReport, check, compiler_name, modules};
use std::collections::{BTreeMap, BTreeSet};

/// Build-time code, tested here because build scripts have no tests.
#[path = "../build/splice.rs"]
mod splice;

/// The architectures that are compiled for: T4, A100, H100 and H200, B200.
const ARCHITECTURES: [(u32, u32); 4] = [(7, 5), (8, 0), (9, 0), (10, 0)];

/// Set to 1 where NVRTC has to be there.
const REQUIRED: &str = "SPARSEOP_REQUIRE_NVRTC";

/// Whether NVRTC is there; says so when it is not.
fn nvrtc() -> bool {
    match compiler_name() {
        Ok(name) => println!("compiling with {name}"),
        Err(reason) if std::env::var(REQUIRED).is_ok_and(|value| value == "1") => {
            panic!("{REQUIRED}=1: {reason}")
        }
        Err(reason) => println!("skipped: {reason}"),
    }
    compiler_name().is_ok()
}

/// The reports for an architecture; a file that does not compile fails with everything the compiler says.
fn reports(arch: (u32, u32)) -> Vec<KernelReport> {
    match check(arch) {
        Err(Error::KernelCompile { log, message, .. }) if log.is_empty() => panic!("{message}"),
        Err(Error::KernelCompile { log, .. }) => panic!("{log}"),
        checked => checked.unwrap(),
    }
}

#[test]
fn every_kernel_compiles_and_stays_in_registers() {
    if !nvrtc() {
        return;
    }
    let (mut table, mut wrong) = (BTreeMap::new(), Vec::new());
    for (column, arch) in ARCHITECTURES.into_iter().enumerate() {
        let reports = reports(arch);
        let with_kernels: BTreeSet<&str> = reports.iter().map(|report| report.module).collect();
        let without = modules().filter(|module| !with_kernels.contains(module));
        wrong.extend(without.map(|module| format!("kernels/{module}.cu has no kernel")));
        for KernelReport { module, kernel, registers, spill_bytes, shared_bytes, stack_bytes } in reports {
            let name = format!("{module}: {kernel}");
            if spill_bytes + stack_bytes > 0 {
                let arch = format!("sm_{}{}", arch.0, arch.1);
                wrong.push(format!("{name} on {arch}: {spill_bytes} bytes spilled, {stack_bytes} of stack"));
            }
            let cells = table.entry(name).or_insert([const { String::new() }; ARCHITECTURES.len()]);
            cells[column] = format!("{registers}/{spill_bytes}/{shared_bytes}");
        }
    }
    println!("\nregisters/bytes spilled/bytes shared");
    println!(
        "{:<50}{}",
        "",
        ARCHITECTURES.map(|(major, minor)| format!("{:>14}", format!("sm_{major}{minor}"))).concat()
    );
    for (name, cells) in &table {
        println!("{name:<50}{}", cells.each_ref().map(|cell| format!("{cell:>14}")).concat());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_header_is_spliced_in_and_lines_keep_their_numbers() {
    let source = "// first\n#include \"common.cuh\"\n#include <cstdint>\nlast";
    let header = ("common.cuh".to_owned(), "#pragma once\nint shared;\n".to_owned());
    let more = ("more.cu".to_owned(), "#define MORE\n#include \"common.cuh\"\nmore".to_owned());
    let headers = splice::Headers::from([header, more]);
    let expected = "#line 1 \"kernels/a.cu\"\n// first\n#line 1 \"kernels/common.cuh\"\n\nint shared;\n\
                    #line 3 \"kernels/a.cu\"\n#include <cstdint>\nlast\n";
    assert_eq!(splice::splice("a.cu", source, &headers).unwrap(), expected);
    assert_eq!(splice::splice("a.cu", "", &headers).unwrap(), "#line 1 \"kernels/a.cu\"\n");
    let nested = "#line 1 \"kernels/a.cu\"\n#line 1 \"kernels/more.cu\"\n#define MORE\n#line 1 \"kernels/common.cuh\"\n\n\
                  int shared;\n#line 3 \"kernels/more.cu\"\nmore\n#line 2 \"kernels/a.cu\"\nlast\n";
    assert_eq!(splice::splice("a.cu", "#include \"more.cu\"\nlast", &headers).unwrap(), nested);
    let message = splice::splice("a.cu", "\n # include \"other.cuh\"", &headers).unwrap_err();
    assert_eq!(message, "kernels/a.cu:2: includes \"other.cuh\", but there are common.cuh, more.cu");
}
