//! Symbol lookup by programs that load the real libraries at run time.
//!
//! A preloaded library precedes others for linked symbols. A lookup in a specific library, however,
//! returns that library's symbol. Therefore this library also defines `dlsym` and `dlvsym`, which
//! return its own function where the answer would be a function of libibverbs or librdmacm that it
//! defines. All other lookups go to the C library, as if the program had called it directly,
//! because some lookups depend on the caller.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The next step of an entry point, in two registers.
#[repr(C)]
struct Answer {
    /// This library's function; null: none, or another one precedes it.
    own: *mut c_void,
    /// The C library's function with the entry point's name, to be called instead.
    ask: usize,
}

// Unit tests keep the C library's: AddressSanitizer looks symbols up before instrumented code can
// run.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, unsafe(export_name = "interposed_dlsym"))]
unsafe extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // A jump keeps the program's return address where the C library expects it.
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp rdx",
        "2:",
        "ret",
        answer = sym answer,
    )
}

#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, unsafe(export_name = "interposed_dlvsym"))]
unsafe extern "C" fn dlvsym(
    library: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {answer}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp rcx",
        "2:",
        "ret",
        answer = sym versioned_answer,
    )
}

unsafe extern "C" fn answer(library: *mut c_void, name: *const c_char) -> Answer {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let ask = real(&REAL, c"dlsym");
    // SAFETY: passed on to the caller.
    let own = unsafe { own(library, name, |_| true) };
    Answer { own, ask }
}

unsafe extern "C" fn versioned_answer(
    library: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Answer {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    let ask = real(&REAL, c"dlvsym");
    // Functions for programs of 2006 have the same names but other structures: they stay the real
    // library's.
    let is_current = |current: *mut c_void| {
        // SAFETY: the C library's function, with the program's arguments.
        let wanted = unsafe { std::mem::transmute::<usize, Dlvsym>(ask)(library, name, version) };
        wanted == current
    };
    // SAFETY: passed on to the caller.
    let own = unsafe { own(library, name, is_current) };
    Answer { own, ask }
}

/// This library's function for a name that resolves to a function of the real libraries in
/// `library`, if `wanted` accepts that one; otherwise null.
///
/// # Safety
/// `name` is null or a C string; `library` is an argument of `dlsym`.
unsafe fn own(
    library: *mut c_void,
    name: *const c_char,
    wanted: impl FnOnce(*mut c_void) -> bool,
) -> *mut c_void {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    // Both start with the library that was loaded first, and so find this library by themselves.
    if name.is_null() || library == libc::RTLD_DEFAULT || library == libc::RTLD_NEXT {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if ![&b"ibv_"[..], b"_ibv_", b"rdma_"].iter().any(|prefix| bytes.starts_with(prefix)) {
        return ptr::null_mut();
    }
    // SAFETY: the C library's function, with the program's arguments.
    unsafe {
        let dlsym = std::mem::transmute::<usize, Dlsym>(real(&REAL, c"dlsym"));
        let theirs = dlsym(library, name);
        if theirs.is_null() || !is_of_real_library(theirs) || !wanted(theirs) {
            return ptr::null_mut();
        }
        // Searches from the start, where the preloaded library is. An interposer before it precedes
        // it for linked programs too.
        dlsym(libc::RTLD_DEFAULT, name)
    }
}

/// The next definition of `name` after this library's; null if there is none.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the C library's function; the search starts after the library of this call.
    unsafe {
        let dlsym = std::mem::transmute::<usize, Dlsym>(real(&REAL, c"dlsym"));
        dlsym(libc::RTLD_NEXT, name.as_ptr())
    }
}

/// [`next`] of a version that no program is linked to any more.
pub(crate) fn next_versioned(name: &CStr, version: &CStr) -> *mut c_void {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: as above.
    unsafe {
        let dlvsym = std::mem::transmute::<usize, Dlvsym>(real(&REAL, c"dlvsym"));
        dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr())
    }
}

/// True if a function belongs to libibverbs or librdmacm.
fn is_of_real_library(function: *mut c_void) -> bool {
    // SAFETY: plain C structure of integers and pointers.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; names are C strings that live as long as their
    // library.
    unsafe {
        if libc::dladdr(function, &raw mut found) == 0 || found.dli_fname.is_null() {
            return false;
        }
        let path = CStr::from_ptr(found.dli_fname).to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        file.starts_with(b"libibverbs.so") || file.starts_with(b"librdmacm.so")
    }
}

/// The C library's function `name`, one of those that this library defines too. Looked up once; if
/// that fails the process ends, since it cannot continue.
fn real(known: &AtomicUsize, name: &CStr) -> usize {
    match known.load(Ordering::Relaxed) {
        0 => {
            let found =
                library_of_dladdr().and_then(|library| library.find(name)).unwrap_or_else(|| {
                    eprintln!("longhaul: the C library has no {}", name.to_string_lossy());
                    std::process::abort();
                });
            known.store(found, Ordering::Relaxed);
            found
        }
        found => found,
    }
}

// Members and constants: System V ABI, "Dynamic Linking"; glibc's `link.h`; the GNU hash section as
// binutils writes it.

#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// The symbols of a loaded library.
struct Library {
    base: usize,
    strings: *const c_char,
    symbols: *const Symbol,
    hash: *const u32,
}

/// The library that defines `dladdr`: every version of glibc has `dlsym` and `dlvsym` in the same
/// one.
fn library_of_dladdr() -> Option<Library> {
    const RTLD_DL_LINKMAP: c_int = 2;
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            found: *mut libc::Dl_info,
            extra: *mut *mut c_void,
            flags: c_int,
        ) -> c_int;
    }
    let mut map: *mut c_void = ptr::null_mut();
    // SAFETY: places for both results; the library is never unloaded, and its tables are as the ABI
    // says.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let address = libc::dladdr as *const c_void;
        if dladdr1(address, &raw mut found, &raw mut map, RTLD_DL_LINKMAP) == 0 || map.is_null() {
            return None;
        }
        let map = &*map.cast::<LinkMap>();
        let at = |tag: i64| {
            let mut entry = map.dynamic;
            loop {
                match (*entry).tag {
                    DT_NULL => return None,
                    here if here == tag => break,
                    _ => entry = entry.add(1),
                }
            }
            // The loader relocates the table's addresses, unless it is read-only.
            let value = (*entry).value;
            Some(if value < map.base { map.base + value } else { value })
        };
        Some(Library {
            base: map.base,
            strings: at(DT_STRTAB)? as *const c_char,
            symbols: at(DT_SYMTAB)? as *const Symbol,
            hash: at(DT_GNU_HASH)? as *const u32,
        })
    }
}

impl Library {
    /// The address of a function that the library defines.
    fn find(&self, name: &CStr) -> Option<usize> {
        let wanted = name
            .to_bytes()
            .iter()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the section is a header of four words, a filter, a bucket per chain, and the
        // chains; a bucket has the number of the chain's first symbol, and the last hash of a chain
        // has its lowest bit set.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|word| *self.hash.add(word));
            let filter_words = filter as usize * (size_of::<c_long>() / size_of::<u32>());
            let bucket = self.hash.add(4 + filter_words);
            let chains = bucket.add(buckets as usize);
            let mut index = *bucket.add((wanted % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let hash = *chains.add((index - first) as usize);
                let symbol = &*self.symbols.add(index as usize);
                let is_it = hash | 1 == wanted | 1
                    && symbol.section != 0
                    && CStr::from_ptr(self.strings.add(symbol.name as usize)) == name;
                if is_it {
                    return Some(self.base + symbol.value);
                }
                if hash & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_functions_are_found_by_name() {
        let library = library_of_dladdr().unwrap();
        assert_eq!(library.find(c"dladdr"), Some(libc::dladdr as *const () as usize));
        assert_eq!(library.find(c"dlsym_of_nobody"), None);
        let real_dlsym = library.find(c"dlsym").unwrap();
        assert_ne!(real_dlsym, dlsym as *const () as usize);
        // SAFETY: the C library's own function.
        let found = unsafe {
            std::mem::transmute::<usize, Dlsym>(real_dlsym)(libc::RTLD_DEFAULT, c"dladdr".as_ptr())
        };
        assert_eq!(found as usize, libc::dladdr as *const () as usize);
    }
}
