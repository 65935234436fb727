//! Datagram services: the UDP and IPoIB port spaces, in which peers request a queue pair and its
//! queue key instead of a connection.

use std::ffi::c_int;
use std::net::SocketAddr;

use longhaul_abi_defs::{RDMA_UDP_QKEY, rdma_cm_id, rdma_conn_param};
use longhaul_cm::{ConnectionId, SidrId, SidrRequest, SidrStatus};
use longhaul_rdma::ConnectionSink;
use longhaul_units::Qpn;

use super::connect::{header, private_data, queue_pair_of, service_of};
use super::id::{self, Id, IdState, Peer};

/// Maximum private data of a reply, in bytes.
const ANSWER_DATA_MAX: usize = 136;

/// Code of a refusal on the wire, which is the event's status. Source: IBTA, volume 1, table 121.
pub(super) fn code_of(status: SidrStatus) -> c_int {
    match status {
        SidrStatus::Valid => 0,
        SidrStatus::Unsupported => 1,
        SidrStatus::Rejected => 2,
        SidrStatus::NoQp => 3,
        SidrStatus::Redirect => 4,
        SidrStatus::UnsupportedVersion => 5,
        SidrStatus::Reserved(code) => code.into(),
    }
}

/// Requests the peer's queue pair. The identifier stays locked until it is bound:
/// `event::translate` waits for that.
///
/// # Safety
/// `id` is live and `state` is its own; `param` is null or valid.
pub(super) unsafe fn connect(
    id: *mut rdma_cm_id,
    state: &mut IdState,
    param: *const rdma_conn_param,
    destination: SocketAddr,
    sink: ConnectionSink,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (user_data, space) = unsafe { (private_data(state, param), (*id).ps) };
    let data = header(&engine, state.local_port, destination)
        .with_sidr_user_data(&user_data)
        .ok_or(libc::EINVAL)?;
    let request = SidrRequest {
        destination_ip: destination.ip(),
        source_ip: engine.attach().source_for(destination.ip()),
        service_id: service_of(space, destination.port()),
        private_data: &data,
    };
    state.peer = Some(Peer::datagram(destination.ip(), state.traffic_class));
    let request = engine.resolve_service(&request, sink).map_err(|error| error.errno())?;
    let number = ConnectionId::from(request);
    state.request = Some(request);
    state.connection = Some(number);
    id::bind_connection(number, id);
    Ok(())
}

/// Removes the peer's request from the identifier: any answer ends it.
fn take_request(state: &mut IdState) -> Result<SidrId, c_int> {
    if !state.passive {
        return Err(libc::EINVAL);
    }
    let request = state.request.take().ok_or(libc::EINVAL)?;
    if let Some(number) = state.connection.take() {
        id::unbind_connection(number);
    }
    Ok(request)
}

/// Answers the request with the identifier's queue pair, or with the program's own.
///
/// # Safety
/// `id` is live and `ours` is its own; `param` is null or valid.
pub(super) unsafe fn accept(
    id: *mut rdma_cm_id,
    ours: &Id,
    param: *const rdma_conn_param,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    let mut state = ours.lock();
    // SAFETY: passed on to the caller.
    let (qpn, data) = unsafe {
        let (qpn, _) = queue_pair_of(id, param.as_ref())?;
        (qpn, private_data(&mut state, param))
    };
    if data.len() > ANSWER_DATA_MAX {
        return Err(libc::EINVAL);
    }
    let request = take_request(&mut state)?;
    state.was_established = true;
    engine
        .offer_service(request, Qpn::new(qpn), RDMA_UDP_QKEY, &data)
        .map_err(|error| error.errno())
}

/// Refuses the request.
pub(super) fn reject(ours: &Id, data: &[u8]) -> Result<(), c_int> {
    if data.len() > ANSWER_DATA_MAX {
        return Err(libc::EINVAL);
    }
    let request = take_request(&mut ours.lock())?;
    id::engine()?.refuse_service(request, SidrStatus::Rejected, data).map_err(|error| error.errno())
}
