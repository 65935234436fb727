//! The commands of bpf(2) that a port needs. Layouts: Linux, `include/uapi/linux/bpf.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::program::Instruction;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_OF_SOCKETS: u32 = 17;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program accepts frames over several buffers.
const PROGRAM_TAKES_PARTS: u32 = 1 << 5;
const LINK_GENERIC: u32 = 1 << 1;
const LINK_NATIVE: u32 = 1 << 2;
const NAME: [u8; 16] = *b"longhaul\0\0\0\0\0\0\0\0";

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
/// `T` must be the layout of the command, and its pointers must be valid.
unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the attributes are live, exclusive and of the given length; the caller guarantees
    // their pointers.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As [`call`], for a command that returns a descriptor.
unsafe fn open<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as the caller says.
    let fd = unsafe { call(command, attributes)? };
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

/// An empty map from queues to sockets.
pub(crate) fn map_of_sockets(entries: u32) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        kind: MAP_OF_SOCKETS,
        key_bytes: 4,
        value_bytes: 4,
        entries,
        flags: 0,
        inner: 0,
        node: 0,
        name: NAME,
    };
    // SAFETY: the command's layout, without pointers.
    unsafe { open(MAP_CREATE, &mut attributes) }
}

/// Redirects frames of the queue to the socket.
pub(crate) fn put_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    let value = number(socket);
    let mut attributes = MapUpdate {
        map: number(map),
        padding: 0,
        key: (&raw const queue) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: the command's layout; key and value are live and have the map's four bytes each.
    unsafe { call(MAP_UPDATE, &mut attributes) }.map(drop)
}

/// Loads a program; with `takes_parts` it also receives frames over several buffers.
pub(crate) fn load(program: &[Instruction], takes_parts: bool) -> io::Result<OwnedFd> {
    let mut attributes = ProgramLoad {
        kind: PROGRAM_XDP,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: if takes_parts { PROGRAM_TAKES_PARTS } else { 0 },
        name: NAME,
        interface: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: the command's layout; the instructions are live and as many as given, the license
    // ends in zero.
    unsafe { open(PROGRAM_LOAD, &mut attributes) }
}

/// Attaches a program to the interface `index` while the returned descriptor is open.
pub(crate) fn link(program: BorrowedFd<'_>, index: u32, is_native: bool) -> io::Result<OwnedFd> {
    let flags = if is_native { LINK_NATIVE } else { LINK_GENERIC };
    let mut attributes =
        LinkCreate { program: number(program), interface: index, attach_type: ATTACH_XDP, flags };
    // SAFETY: the command's layout, without pointers.
    unsafe { open(LINK_CREATE, &mut attributes) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TEST_RUN: libc::c_int = 10;

    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        program: u32,
        returned: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        context_bytes_in: u32,
        context_bytes_out: u32,
        context_in: u64,
        context_out: u64,
        flags: u32,
        cpu: u32,
        batch: u32,
        padding: u32,
    }

    /// Verdict of the program on a frame from queue 0 of the loopback interface.
    pub(crate) fn run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
        let mut attributes = TestRun {
            program: number(program),
            bytes_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            ..TestRun::default()
        };
        // SAFETY: the command's layout; the frame is live and as long as given.
        unsafe { call(TEST_RUN, &mut attributes)? };
        Ok(attributes.returned)
    }
}
