//! Declarations of the functions of `shim.c`, as in `shim.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A pool of buffers.
#[repr(C)]
pub(crate) struct Pool {
    _opaque: [u8; 0],
}

/// A buffer.
#[repr(C)]
pub(crate) struct Mbuf {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub(crate) driver: [c_char; 64],
    pub(crate) mtu_max: u32,
    pub(crate) socket: i32,
    pub(crate) rx_queues_max: u16,
    pub(crate) tx_queues_max: u16,
    pub(crate) spread_slots: u16,
    pub(crate) takes_chains: u8,
    pub(crate) gives_chains: u8,
    pub(crate) hashes_addresses: u8,
    pub(crate) hash_key_bytes: u8,
}

impl Default for Info {
    fn default() -> Self {
        // SAFETY: zeros are a value of it: numbers and an array of them.
        unsafe { std::mem::zeroed() }
    }
}

#[repr(C)]
pub(crate) struct Setup {
    pub(crate) pools: *const *mut Pool,
    pub(crate) hash_key: *const u8,
    pub(crate) mtu: u32,
    pub(crate) tx_queues: u16,
    pub(crate) rx_queues_each: u16,
    pub(crate) rx_slots: u16,
    pub(crate) tx_slots: u16,
    pub(crate) chains: u8,
    pub(crate) refers: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawFrame {
    pub(crate) mbuf: *mut Mbuf,
    pub(crate) bytes: *mut u8,
    pub(crate) len: u32,
    pub(crate) segments: u16,
    pub(crate) has_bad_sum: u16,
}

impl RawFrame {
    pub(crate) const NONE: RawFrame = RawFrame {
        mbuf: std::ptr::null_mut(),
        bytes: std::ptr::null_mut(),
        len: 0,
        segments: 0,
        has_bad_sum: 0,
    };
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Statistics {
    pub(crate) rx_missed: u64,
    pub(crate) rx_errors: u64,
    pub(crate) rx_no_mbuf: u64,
    pub(crate) tx_errors: u64,
}

/// `LH_BURST_MAX`.
pub(crate) const BURST_MAX: usize = 64;

unsafe extern "C" {
    pub(crate) fn lh_keep_log(print: c_int);
    pub(crate) fn lh_first_error(out: *mut c_char, size: usize);
    pub(crate) fn lh_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub(crate) fn lh_register_thread() -> c_int;
    pub(crate) fn lh_unregister_thread();
    pub(crate) fn lh_attach(device: *const c_char, devargs: *const c_char, port: *mut u16)
    -> c_int;
    pub(crate) fn lh_detach(port: u16) -> c_int;
    pub(crate) fn lh_describe(port: u16, info: *mut Info) -> c_int;
    pub(crate) fn lh_configure(port: u16, setup: *const Setup) -> c_int;
    pub(crate) fn lh_spread_evenly(port: u16, hash_key: *const u8, queues: u16) -> c_int;
    pub(crate) fn lh_start(port: u16) -> c_int;
    pub(crate) fn lh_stop(port: u16) -> c_int;
    pub(crate) fn lh_link_is_up(port: u16) -> c_int;
    pub(crate) fn lh_set_link(port: u16, is_up: c_int) -> c_int;
    pub(crate) fn lh_statistics(port: u16, statistics: *mut Statistics) -> c_int;
    pub(crate) fn lh_pool(
        name: *const c_char,
        buffers: c_uint,
        buffer_bytes: c_uint,
        socket: c_int,
    ) -> *mut Pool;
    pub(crate) fn lh_reference_pool(
        name: *const c_char,
        buffers: c_uint,
        socket: c_int,
    ) -> *mut Pool;
    pub(crate) fn lh_refer(
        frame: *mut RawFrame,
        bytes: *const u8,
        len: u32,
        let_go: unsafe extern "C" fn(*mut c_void, *mut c_void),
        lease: *mut c_void,
    ) -> c_int;
    pub(crate) fn lh_pool_free(pool: *mut Pool);
    pub(crate) fn lh_pool_free_buffers(pool: *const Pool) -> c_uint;
    pub(crate) fn lh_receive(port: u16, queue: u16, frames: *mut RawFrame, count: c_uint)
    -> c_uint;
    pub(crate) fn lh_gather(frame: *const RawFrame, out: *mut u8);
    pub(crate) fn lh_allocate(pool: *mut Pool, frames: *mut RawFrame, count: c_uint) -> c_int;
    pub(crate) fn lh_spread(frames: *mut RawFrame, count: c_uint, bytes: *const u8, len: u32);
    pub(crate) fn lh_transmit(
        port: u16,
        queue: u16,
        frames: *const RawFrame,
        count: c_uint,
    ) -> c_uint;
    pub(crate) fn lh_free(frames: *const RawFrame, count: c_uint);
}
