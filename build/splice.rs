//! Makes one source of a kernel file and its includes, because the compiler at run time reads no
//! files.

use std::collections::{BTreeMap, BTreeSet};

/// All files that kernels include, by name.
pub(crate) type Headers = BTreeMap<String, String>;

/// Line of a header that is included at most once.
const ONCE: &str = "#pragma once";

/// Returns the kernel file `file` with its include lines replaced by the included files. Compiler
/// messages still name the original file and line.
///
/// # Errors
///
/// If an included file does not exist.
pub(crate) fn splice(file: &str, source: &str, headers: &Headers) -> Result<String, String> {
    splice_into(file, source, headers, &mut BTreeSet::new())
}

/// As [`splice`], without the headers in `included`, to which it adds.
fn splice_into<'a>(
    file: &str,
    source: &str,
    headers: &'a Headers,
    included: &mut BTreeSet<&'a str>,
) -> Result<String, String> {
    let mut spliced = format!("#line 1 \"kernels/{file}\"\n");
    for (number, line) in (1..).zip(source.lines()) {
        let Some(name) = include(line) else {
            // Outside of a header this line is a warning.
            spliced += if line.trim() == ONCE { "" } else { line };
            spliced.push('\n');
            continue;
        };
        let Some((name, header)) = headers.get_key_value(name) else {
            let known: Vec<_> = headers.keys().map(String::as_str).collect();
            let known = known.join(", ");
            return Err(format!(
                "kernels/{file}:{number}: includes \"{name}\", but there are {known}"
            ));
        };
        if header.lines().any(|line| line.trim() == ONCE) && !included.insert(name) {
            spliced.push('\n');
            continue;
        }
        let next = number + 1;
        spliced += &splice_into(name, header, headers, included)?;
        spliced += &format!("#line {next} \"kernels/{file}\"\n");
    }
    Ok(spliced)
}

/// The file name between the quotes of an `#include`.
fn include(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}
