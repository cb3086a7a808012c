"""The algebra of grids: extents, points, slices, and sets of ranks as people write them. Pure."""

from monarch_nb._shape.cpu_set import parse_cpu_set
from monarch_nb._shape.elastic import elastic_numbers
from monarch_nb._shape.extent import Extent, Point, decode_extent, encode_extent
from monarch_nb._shape.rank_set import (
    RankSetError,
    format_ranks,
    name_hosts,
    name_ranks,
    parse_ranks,
    pick_ranks,
    read_ranks,
)
from monarch_nb._shape.shape import MeshTrait, Shape

__all__ = [
    "Extent",
    "MeshTrait",
    "Point",
    "RankSetError",
    "Shape",
    "decode_extent",
    "elastic_numbers",
    "encode_extent",
    "format_ranks",
    "name_hosts",
    "name_ranks",
    "parse_cpu_set",
    "parse_ranks",
    "pick_ranks",
    "read_ranks",
]
