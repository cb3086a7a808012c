"""Queue pairs: creation and connection."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any

from monarch_nb.rdma.paths.verbs.nic import Nic

TIMEOUT_CODE = 16
"""An unanswered packet is sent again after 4.096 us * 2^16 = 0.27 s (NICs may take up to four times that),"""
NUM_RETRIES = 6
"""so often: a dead peer is noticed after some 2 s. 7 would mean for ever with some NICs."""


@dataclass(frozen=True, slots=True)
class QPInfo:
    """The data of a queue pair that its peer needs to connect.

    Attributes:
        number, start: number of the queue pair, and of its first packet.
        gid, lid: address of its port.
        mtu: code of the largest packet.
        reads_asked, reads_answered: how many READs at a time it may have under way, and can answer.
    """

    number: int
    start: int
    gid: str
    lid: int
    mtu: int
    reads_asked: int
    reads_answered: int


class QueuePair:
    """One end of a reliable connection.

    Raises:
        VerbsError: if the NIC has no more.
    """

    def __init__(self, nic: Nic, completions: Any, num_requests: int, num_parts: int) -> None:
        library, constants = nic.library, nic.constants
        self.nic = nic
        cap = library.QPCap(
            max_send_wr=num_requests, max_recv_wr=1, max_send_sge=num_parts, max_recv_sge=1, max_inline_data=0
        )
        kind = library.QPInitAttr(
            qp_type=constants.IBV_QPT_RC, scq=completions, rcq=completions, cap=cap, sq_sig_all=0
        )
        self.pair = nic.call("making a queue pair", lambda: library.QP(nic.domain, kind))
        self.info = QPInfo(
            int(self.pair.qp_num),
            secrets.randbits(24),
            nic.gid.value,
            nic.lid,
            nic.mtu,
            nic.max_reads_asked,
            nic.max_reads_answered,
        )

    def connect(self, other: QPInfo, *, serves: bool) -> None:
        """Connect to the other end. Only the end that `serves` allows access to its memory.

        Raises:
            VerbsError: if the other NIC's address can't be reached.
        """
        self.nic.call("preparing a queue pair", lambda: self._prepare(serves))
        self.nic.call(f"connecting to {other.gid}", lambda: self._aim(other))
        self.nic.call(f"connecting to {other.gid}", lambda: self._start(other))

    def _prepare(self, serves: bool) -> None:
        c = self.nic.constants
        attributes = self._attributes(c.IBV_QPS_INIT)
        attributes.pkey_index = 0
        attributes.qp_access_flags = (
            c.IBV_ACCESS_REMOTE_READ | c.IBV_ACCESS_REMOTE_WRITE | c.IBV_ACCESS_LOCAL_WRITE if serves else 0
        )
        self.pair.modify(
            attributes, c.IBV_QP_STATE | c.IBV_QP_PKEY_INDEX | c.IBV_QP_PORT | c.IBV_QP_ACCESS_FLAGS
        )

    def _aim(self, other: QPInfo) -> None:
        c, library = self.nic.constants, self.nic.library
        attributes = self._attributes(c.IBV_QPS_RTR)
        route = library.GlobalRoute(
            dgid=library.GID(_long_gid(other.gid)), sgid_index=self.nic.gid.index, hop_limit=64
        )
        attributes.ah_attr = library.AHAttr(
            port_num=self.nic.port.number, is_global=1, gr=route, dlid=other.lid
        )
        attributes.path_mtu = min(self.info.mtu, other.mtu)
        attributes.dest_qp_num = other.number
        attributes.rq_psn = other.start
        attributes.max_dest_rd_atomic = min(self.info.reads_answered, other.reads_asked)
        attributes.min_rnr_timer = 12
        self.pair.modify(
            attributes,
            c.IBV_QP_STATE
            | c.IBV_QP_AV
            | c.IBV_QP_PATH_MTU
            | c.IBV_QP_DEST_QPN
            | c.IBV_QP_RQ_PSN
            | c.IBV_QP_MAX_DEST_RD_ATOMIC
            | c.IBV_QP_MIN_RNR_TIMER,
        )

    def _start(self, other: QPInfo) -> None:
        c = self.nic.constants
        attributes = self._attributes(c.IBV_QPS_RTS)
        attributes.timeout = TIMEOUT_CODE
        attributes.retry_cnt = NUM_RETRIES
        attributes.rnr_retry = NUM_RETRIES
        attributes.sq_psn = self.info.start
        attributes.max_rd_atomic = min(self.info.reads_asked, other.reads_answered)
        self.pair.modify(
            attributes,
            c.IBV_QP_STATE
            | c.IBV_QP_TIMEOUT
            | c.IBV_QP_RETRY_CNT
            | c.IBV_QP_RNR_RETRY
            | c.IBV_QP_SQ_PSN
            | c.IBV_QP_MAX_QP_RD_ATOMIC,
        )

    def stop(self) -> None:
        """Stop the queue; requests in flight complete with the status "flushed"."""
        self.pair.modify(self._attributes(self.nic.constants.IBV_QPS_ERR), self.nic.constants.IBV_QP_STATE)

    def _attributes(self, state: int) -> Any:
        attributes = self.nic.library.QPAttr(port_num=self.nic.port.number)
        attributes.qp_state = state
        return attributes

    def close(self) -> None:
        """Close the queue pair; when this returns, its NIC accesses no memory for it any more."""
        self.pair.close()


def _long_gid(value: str) -> str:
    """Return an address in full, with all its zeros, as libibverbs requires."""
    return IPv6Address(value).exploded
