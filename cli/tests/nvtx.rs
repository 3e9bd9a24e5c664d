//! Ranges of NVIDIA's profilers, recorded by a library in place of NVTX.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// A library with the functions of NVTX. It writes its calls, one per line, to the file
/// `SPARSEOP_TEST_RANGES`.
const SOURCE: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    static int depth = 0;
    static void tell(const char *what, const char *text) {
        FILE *file = fopen(getenv("SPARSEOP_TEST_RANGES"), "a");
        fprintf(file, "%s%s\n", what, text);
        fclose(file);
    }
    int nvtxRangePushA(const char *text) {
        tell("> ", text);
        return getenv("SPARSEOP_TEST_BLIND") ? -2 : depth++;
    }
    int nvtxRangePop(void) { tell("<", ""); return --depth; }
"#;

/// Calls of the library while the program computes a product.
fn ranges(folder: &Path, blind: bool) -> Vec<String> {
    let file = folder.join(if blind { "blind" } else { "looking" });
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparseop"));
    command.args(["apply", "gallery:small", "--device", "cpu"]).env("SPARSEOP_TEST_RANGES", &file);
    command.env("LD_LIBRARY_PATH", folder).env("SPARSEOP_PROFILE", "off");
    if blind {
        command.env("SPARSEOP_TEST_BLIND", "1");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn ranges_are_those_of_the_spans_with_a_profiler() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("nvtx.c");
    fs::write(&source, SOURCE).unwrap();
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.path().join("libnvtx3interop.so.1"))
        .arg(&source);
    let Ok(compiled) = command.output() else {
        println!("skipped: no C compiler");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    assert_eq!(ranges(folder.path(), true), ["> sparseop", "<"], "no profiler is attached");
    let calls = ranges(folder.path(), false);
    let pushed: Vec<&str> = calls.iter().filter_map(|line| line.strip_prefix("> ")).collect();
    let firsts: Vec<&str> = pushed.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(
        firsts.contains(&"sparseop::analyze") && firsts.contains(&"sparseop::apply"),
        "{calls:?}"
    );
    let apply = pushed.iter().find(|line| line.starts_with("sparseop::apply")).unwrap();
    assert!(apply.contains(" plan=") && apply.contains(" rows=10000 "), "{apply}");
    assert_eq!(pushed.len() * 2, calls.len(), "every range ends");
}
