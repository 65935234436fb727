//! The control channel: a connected SOCK_SEQPACKET socket that carries messages and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::{MESSAGE_BYTES, Message};
use crate::violation::{Violation, violation};

/// The next message of the control channel, if any.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message, Option<OwnedFd>),
    Nothing,
    Closed,
}

/// One end of a control channel. It never blocks.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
}

impl Control {
    /// Takes ownership of a connected, non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends one message, with a descriptor if there is one.
    ///
    /// The protocol is lock-step, so the socket buffer always has space for an honest peer; a peer
    /// that does not read causes an error.
    pub(crate) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ()).map_err(io::Error::from),
            }
        }
    }

    /// Tells the peer why this side disconnects. An error is ignored, since the peer may be gone.
    pub(crate) fn send_disconnect(&self, reason: &str) {
        let message = Message::Disconnect { code: 0, reason: reason.to_owned() };
        let _ = self.send(&message, None);
    }

    /// Receives the next message, if one waits.
    pub(crate) fn receive(&self) -> Result<Received, Violation> {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let header = loop {
            let result =
                recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
            match result {
                Ok(header) => break header,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(_) => return Ok(Received::Closed),
            }
        };
        // Accepts every descriptor, so that unwanted ones are closed.
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if header.bytes == 0 {
            return Ok(Received::Closed);
        }
        if header.bytes != MESSAGE_BYTES || header.flags.contains(ReturnFlags::TRUNC) {
            return Err(violation!("a control message is not {MESSAGE_BYTES} bytes long"));
        }
        if fds.len() > 1 || header.flags.contains(ReturnFlags::CTRUNC) {
            return Err(violation!("a control message carries more than one descriptor"));
        }
        Ok(Received::Message(Message::decode(&bytes)?, fds.pop()))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
