//! The C library's functions that take a path and do nothing but use it.
//!
//! They unwind, because a program may cancel a thread in them, and hold nothing that needs
//! dropping. `open` and `openat` are variadic in C; on x86-64 the callee finds a variadic integer
//! where it finds an ordinary one, and passes on whatever is there.

use super::real::Real;
use super::tree::redirect;
use crate::guard::set_errno;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libc::AT_FDCWD;

type Mode = libc::mode_t;
/// A result or argument that is passed on.
type Place = *mut c_void;

/// A result type's value for failure.
trait Failing {
    const FAILED: Self;
}

impl Failing for c_int {
    const FAILED: c_int = -1;
}

impl Failing for isize {
    const FAILED: isize = -1;
}

impl Failing for Place {
    const FAILED: Place = null_mut();
}

/// Defines each function: its arguments before the path, those after it, its result, the
/// descriptor to which the path is relative, and whether it would write.
macro_rules! interpose {
    ($(
        $name:ident $(@$version:literal)?
        [$($before:ident: $before_type:ty),*] [$($after:ident: $after_type:ty),*]
        $result:ty, $dir:expr, $writes:expr;
    )*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code, reason = "the tests keep the C library's"))]
        unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)* path: *const c_char $(, $after: $after_type)*
        ) -> $result {
            type Function = unsafe extern "C-unwind" fn(
                $($before_type,)* *const c_char $(, $after_type)*
            ) -> $result;
            const NAME: &CStr = c_name(concat!(stringify!($name), "\0"));
            static REAL: Real = interpose!(@real NAME $(, $version)?);
            let Some(address) = REAL.address() else {
                set_errno(libc::ENOSYS);
                return <$result>::FAILED;
            };
            // SAFETY: the C library's function of this name, with the program's arguments.
            unsafe {
                let real = std::mem::transmute::<*const c_void, Function>(address);
                redirect($dir, path, |path, is_redirected| {
                    if is_redirected && $writes {
                        set_errno(libc::EACCES);
                        return <$result>::FAILED;
                    }
                    real($($before,)* path $(, $after)*)
                })
            }
        }
    )* };
    (@real $name:ident) => { Real::new($name) };
    (@real $name:ident, $version:literal) => { Real::old($name, $version) };
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with one zero, at its end"),
    }
}

fn opens_to_write(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0
}

fn checks_writing(mode: c_int) -> bool {
    mode & libc::W_OK != 0
}

/// True if a mode of `fopen` writes.
///
/// # Safety
/// `mode` is a C string, as the C library requires.
unsafe fn stream_writes(mode: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(mode) }.to_bytes().iter().any(|byte| b"wa+".contains(byte))
}

interpose! {
    open [] [flags: c_int, mode: Mode] c_int, AT_FDCWD, opens_to_write(flags);
    open64 [] [flags: c_int, mode: Mode] c_int, AT_FDCWD, opens_to_write(flags);
    __open [] [flags: c_int, mode: Mode] c_int, AT_FDCWD, opens_to_write(flags);
    __open64 [] [flags: c_int, mode: Mode] c_int, AT_FDCWD, opens_to_write(flags);
    __open_2 [] [flags: c_int] c_int, AT_FDCWD, opens_to_write(flags);
    __open64_2 [] [flags: c_int] c_int, AT_FDCWD, opens_to_write(flags);
    openat [dir: c_int] [flags: c_int, mode: Mode] c_int, dir, opens_to_write(flags);
    openat64 [dir: c_int] [flags: c_int, mode: Mode] c_int, dir, opens_to_write(flags);
    __openat_2 [dir: c_int] [flags: c_int] c_int, dir, opens_to_write(flags);
    __openat64_2 [dir: c_int] [flags: c_int] c_int, dir, opens_to_write(flags);
    creat [] [mode: Mode] c_int, AT_FDCWD, true;
    creat64 [] [mode: Mode] c_int, AT_FDCWD, true;
    fopen [] [mode: *const c_char] Place, AT_FDCWD, stream_writes(mode);
    fopen64 [] [mode: *const c_char] Place, AT_FDCWD, stream_writes(mode);
    freopen [] [mode: *const c_char, stream: Place] Place, AT_FDCWD, stream_writes(mode);
    freopen64 [] [mode: *const c_char, stream: Place] Place, AT_FDCWD, stream_writes(mode);
    opendir [] [] Place, AT_FDCWD, false;
    scandir [] [list: Place, filter: Place, order: Place] c_int, AT_FDCWD, false;
    scandir64 [] [list: Place, filter: Place, order: Place] c_int, AT_FDCWD, false;
    scandirat [dir: c_int] [list: Place, filter: Place, order: Place] c_int, dir, false;
    scandirat64 [dir: c_int] [list: Place, filter: Place, order: Place] c_int, dir, false;
    stat [] [status: Place] c_int, AT_FDCWD, false;
    stat64 [] [status: Place] c_int, AT_FDCWD, false;
    lstat [] [status: Place] c_int, AT_FDCWD, false;
    lstat64 [] [status: Place] c_int, AT_FDCWD, false;
    fstatat [dir: c_int] [status: Place, flags: c_int] c_int, dir, false;
    fstatat64 [dir: c_int] [status: Place, flags: c_int] c_int, dir, false;
    statx [dir: c_int] [flags: c_int, mask: c_uint, status: Place] c_int, dir, false;
    __xstat @c"GLIBC_2.2.5" [version: c_int] [status: Place] c_int, AT_FDCWD, false;
    __xstat64 @c"GLIBC_2.2.5" [version: c_int] [status: Place] c_int, AT_FDCWD, false;
    __lxstat @c"GLIBC_2.2.5" [version: c_int] [status: Place] c_int, AT_FDCWD, false;
    __lxstat64 @c"GLIBC_2.2.5" [version: c_int] [status: Place] c_int, AT_FDCWD, false;
    __fxstatat @c"GLIBC_2.4" [version: c_int, dir: c_int] [status: Place, flags: c_int]
        c_int, dir, false;
    __fxstatat64 @c"GLIBC_2.4" [version: c_int, dir: c_int] [status: Place, flags: c_int]
        c_int, dir, false;
    access [] [mode: c_int] c_int, AT_FDCWD, checks_writing(mode);
    eaccess [] [mode: c_int] c_int, AT_FDCWD, checks_writing(mode);
    euidaccess [] [mode: c_int] c_int, AT_FDCWD, checks_writing(mode);
    faccessat [dir: c_int] [mode: c_int, flags: c_int] c_int, dir, checks_writing(mode);
    readlink [] [place: *mut c_char, size: usize] isize, AT_FDCWD, false;
    __readlink_chk [] [place: *mut c_char, size: usize, room: usize] isize, AT_FDCWD, false;
    readlinkat [dir: c_int] [place: *mut c_char, size: usize] isize, dir, false;
    __readlinkat_chk [dir: c_int] [place: *mut c_char, size: usize, room: usize] isize, dir, false;
    chdir [] [] c_int, AT_FDCWD, false;
    statfs [] [status: Place] c_int, AT_FDCWD, false;
    statfs64 [] [status: Place] c_int, AT_FDCWD, false;
    getxattr [] [name: *const c_char, value: Place, size: usize] isize, AT_FDCWD, false;
    lgetxattr [] [name: *const c_char, value: Place, size: usize] isize, AT_FDCWD, false;
    listxattr [] [list: *mut c_char, size: usize] isize, AT_FDCWD, false;
    llistxattr [] [list: *mut c_char, size: usize] isize, AT_FDCWD, false;
}
