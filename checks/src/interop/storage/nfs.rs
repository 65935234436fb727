//! NFS version 4.2 over RDMA: files in the memory of one guest, used by the other.

use super::LIMIT;
use crate::guest::Guest;
use std::net::Ipv4Addr;
use std::time::Duration;

/// IANA's for NFS over RDMA.
pub const PORT: u16 = 20049;
/// What the server exports.
pub const EXPORTED: &str = "/export";
/// Where the client has it.
pub const MOUNTED: &str = "/mnt";
const EXPORT_MIB: u32 = 96;
/// Flags of an export (Linux, include/uapi/linux/nfsd/export.h): any source port, no checks of
/// subtrees, and the identifier that comes with it instead of a disk's.
const FLAGS: u32 = 0x0002 | 0x0400 | 0x2000;
/// The latest that the kernel knows: never.
const EXPIRY: i32 = i32::MAX;

/// Exports a file system in memory to `client`, with all of root's rights. Once for each guest.
///
/// # Panics
/// When the kernel refuses something, with its messages.
pub fn serve(guest: &Guest, client: Ipv4Addr) {
    // Who may have what is asked of mountd, once. The answers are given here before anybody asks:
    // the address is a client, the client has the export with identifier 0, and that identifier's
    // handle is the root of all. Version 3 would want a portmapper for its locks. Clients from
    // before might claim theirs, for 90 s; there are none, which the kernel believes if it has a
    // directory to list clients in.
    let script = format!(
        "set -e
        mkdir -p {EXPORTED} /var/lib/nfs/v4recovery
        mount -t tmpfs -o size={EXPORT_MIB}m tmpfs {EXPORTED}
        mount -t nfsd nfsd /proc/fs/nfsd
        cd /proc/net/rpc
        echo 'nfsd {client} {EXPIRY} client' >auth.unix.ip/channel
        echo 'client {EXPORTED} {EXPIRY} {FLAGS} 65534 65534 0' >nfsd.export/channel
        printf '%s\\n' 'client 1 \\x00000000 {EXPIRY} {EXPORTED}' >nfsd.fh/channel
        cd /proc/fs/nfsd
        echo -3 >versions
        echo 'rdma {PORT}' >portlist
        echo 4 >threads
        echo Y >v4_end_grace"
    );
    guest.succeed(&script, LIMIT);
}

/// Mounts what `server` exports.
///
/// # Panics
/// When that fails, or it is not by RDMA.
pub fn mount(guest: &Guest, server: Ipv4Addr) {
    let script = format!(
        "set -e
        mkdir -p {MOUNTED}
        busybox mount -t nfs4 -o vers=4.2,proto=rdma,port={PORT},addr={server} {server}:/ {MOUNTED}
        grep ' {MOUNTED} nfs4 .*proto=rdma' /proc/mounts"
    );
    guest.succeed(&script, LIMIT);
}

/// Takes it away again, with all that is not written yet written.
///
/// # Panics
/// When that fails or takes longer than `limit`.
pub fn unmount(guest: &Guest, limit: Duration) {
    guest.succeed(&format!("umount {MOUNTED}"), limit);
}
