//! The C library's functions whose results are paths: shown below `/sys`, not in the tree.

use super::real::Real;
use super::tree::{redirect, show};
use crate::guard::{null, set_errno};
use std::ffi::{c_char, c_int, c_void};

use libc::AT_FDCWD;

macro_rules! real {
    ($name:literal, $type:ty, $failure:expr) => {{
        static REAL: Real = Real::new($name);
        match REAL.address() {
            // SAFETY: the C library's function of this name.
            Some(address) => unsafe { std::mem::transmute::<*const c_void, $type>(address) },
            None => return $failure,
        }
    }};
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn realpath(path: *const c_char, place: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C-unwind" fn(*const c_char, *mut c_char) -> *mut c_char;
    let real = real!(c"realpath", Function, null(libc::ENOSYS));
    // SAFETY: the C library's function, with the program's arguments; its result is a C string of
    // the program.
    unsafe {
        let found = redirect(AT_FDCWD, path, |path, _| real(path, place));
        show(found);
        found
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    place: *mut c_char,
    room: usize,
) -> *mut c_char {
    type Function = unsafe extern "C-unwind" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    let real = real!(c"__realpath_chk", Function, null(libc::ENOSYS));
    // SAFETY: as in `realpath`.
    unsafe {
        let found = redirect(AT_FDCWD, path, |path, _| real(path, place, room));
        show(found);
        found
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    type Function = unsafe extern "C-unwind" fn(*const c_char) -> *mut c_char;
    let real = real!(c"canonicalize_file_name", Function, null(libc::ENOSYS));
    // SAFETY: as in `realpath`.
    unsafe {
        let found = redirect(AT_FDCWD, path, |path, _| real(path));
        show(found);
        found
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn getcwd(place: *mut c_char, size: usize) -> *mut c_char {
    type Function = unsafe extern "C-unwind" fn(*mut c_char, usize) -> *mut c_char;
    let real = real!(c"getcwd", Function, null(libc::ENOSYS));
    // SAFETY: as in `realpath`.
    unsafe {
        let found = real(place, size);
        show(found);
        found
    }
}

/// The result structure of `glob`, of which this library uses the first two members.
#[repr(C)]
struct Found {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
}

type Glob = unsafe extern "C-unwind" fn(*const c_char, c_int, *const c_void, *mut Found) -> c_int;

/// Expands a pattern whose directories above the device contain no wildcard.
///
/// # Safety
/// The arguments are those of `glob`.
unsafe fn expand(
    real: Glob,
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut Found,
) -> c_int {
    // SAFETY: the C library's function, with the program's arguments; on success it has filled in
    // the structure, whose paths are C strings in memory that the C library allocated.
    unsafe {
        redirect(AT_FDCWD, pattern, |pattern, is_redirected| {
            let result = real(pattern, flags, error, found);
            if is_redirected && result == 0 {
                let skipped = if flags & libc::GLOB_DOOFFS != 0 { (*found).reserved } else { 0 };
                for index in 0..(*found).count {
                    show(*(*found).paths.add(skipped + index));
                }
            }
            result
        })
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn glob(
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut Found,
) -> c_int {
    let real = real!(c"glob", Glob, failed_glob());
    // SAFETY: passed on.
    unsafe { expand(real, pattern, flags, error, found) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
unsafe extern "C-unwind" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    error: *const c_void,
    found: *mut Found,
) -> c_int {
    let real = real!(c"glob64", Glob, failed_glob());
    // SAFETY: passed on.
    unsafe { expand(real, pattern, flags, error, found) }
}

fn failed_glob() -> c_int {
    set_errno(libc::ENOSYS);
    libc::GLOB_ABORTED
}
