//! The examples in C are compiled with warnings as errors, linked with the library, and run.
#![cfg(unix)]

use sparseop_testkit::gpu;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The folder with the library: that of this program, but one.
fn libraries() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

/// Linkage of a program.
#[derive(Clone, Copy, PartialEq)]
enum Link {
    Shared,
    Static,
}

/// The libraries that a program needs beside the static one, as `pkg-config --static` says.
fn private() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("sparseop.pc.in");
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Libs.private: ")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// Output of an example; none without a C compiler.
fn run(example: &str, link: Link, arguments: &[&str]) -> Option<String> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: no C compiler");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (folder, libraries) = (tempfile::tempdir().unwrap(), libraries());
    let program = folder.path().join(example);
    let mut command = Command::new(compiler);
    command
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I"])
        .arg(root.join("include"));
    command.arg(root.join("../examples/c").join(format!("{example}.c"))).arg("-o").arg(&program);
    if link == Link::Shared {
        command.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
        command.args(["-lsparseop_c", "-ldl", "-lm"]);
    } else {
        command.arg(libraries.join("libsparseop_c.a")).args(private());
    }
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output =
        Command::new(&program).args(arguments).env("SPARSEOP_PROFILE", "off").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn products_in_c() {
    let Some(text) = run("product", Link::Shared, &[]) else { return };
    for line in ["sparseop 0.1.0", "plan ", "rows 10000", "all answers are right"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("refused: not a valid CSR matrix: col_idx[1] is 99"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn products_in_c_with_the_static_library() {
    let Some(text) = run("product", Link::Static, &[]) else { return };
    assert!(text.contains("all answers are right"), "{text}");
}

#[test]
fn products_in_c_on_a_gpu() {
    let Some(text) = run("device", Link::Shared, &[]) else { return };
    print!("{text}");
    let expected = if gpu().is_some() { "all answers are right" } else { "no GPU" };
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_header_is_one_for_cpp_too() {
    let compiler = env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: no C++ compiler");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("header.cpp");
    fs::write(
        &file,
        "#include \"sparseop.h\"\nint main() { return sparseop_version()[0] == 0; }\n",
    )
    .unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new(compiler);
    let compiled = command
        .args(["-Wall", "-Werror", "-fsyntax-only", "-I"])
        .arg(include)
        .arg(file)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
