//! One source from a kernel file and its headers, because the compiler that runs later reads no files.

use std::collections::BTreeMap;

/// The headers by name: `*.cuh` beside the kernel files. They include nothing.
pub(crate) type Headers = BTreeMap<String, String>;

/// The kernel file `file` with headers in the place of the lines that include them. Compilers still name the line of the file that
/// somebody wrote.
///
/// # Errors
///
/// When another file is included.
pub(crate) fn splice(file: &str, source: &str, headers: &Headers) -> Result<String, String> {
    let mut spliced = format!("#line 1 \"kernels/{file}\"\n");
    for (number, line) in (1..).zip(source.lines()) {
        let Some(name) = included(line) else {
            push(&mut spliced, line);
            continue;
        };
        let Some(header) = headers.get(name) else {
            let known: Vec<_> = headers.keys().map(String::as_str).collect();
            let known = known.join(", ");
            return Err(format!("kernels/{file}:{number}: includes \"{name}\", but the headers are {known}"));
        };
        let next = number + 1;
        spliced += &format!("#line 1 \"kernels/{name}\"\n");
        header.lines().for_each(|line| push(&mut spliced, line));
        spliced += &format!("#line {next} \"kernels/{file}\"\n");
    }
    Ok(spliced)
}

/// Adds a line; the header's `#pragma once` would be a warning in what is no longer a header.
fn push(text: &mut String, line: &str) {
    if line.trim() != "#pragma once" {
        *text += line;
    }
    text.push('\n');
}

/// What stands between the quotes of an `#include`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}
