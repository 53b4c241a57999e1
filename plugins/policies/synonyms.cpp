// What the field calls things that have another name here: words of PyTorch, DeepSpeed, Megatron
// and papers. Messages about unknown names lead from them to ours.
#include "meshwright/engine/synonyms.h"

namespace mw {
namespace {

// clang-format off
constexpr Synonym synonyms[] = {
    // strategies
    {"fsdp fsdp2 fullyshard fullysharded", "zero", "zero { N, stage = 3 }"},
    {"fullyshardeddataparallel zero3", "zero", "zero { N, stage = 3 }"},
    {"hsdp hybridshard", "zero", "dp(M) beside zero { N, stage = 3 }"},
    {"zero1 distributedoptimizer shardedoptimizer", "zero", "zero { N, stage = 1 }"},
    {"zero2", "zero", "zero { N, stage = 2 }"},
    {"deepspeed", "zero", "zero { N, stage = 1 }, 2 or 3"},
    {"ddp data dataparallel distributeddataparallel", "dp", "dp(N)"},
    {"mp modelparallel tensor tensorparallel tensormodelparallel megatron", "tp", "tp(N)"},
    {"cp context contextparallel ringattention", "sp", "sp { N, form = \"ring\" }"},
    {"ulysses", "sp", "sp { N, form = \"ulysses\" }"},
    {"sequence sequenceparallel", "sp", "sp(N)"},
    {"pipeline pipelineparallel pipelinemodelparallel pipe", "pp", "pp(N)"},
    {"expert expertparallel expertmodelparallel", "ep", "ep(N)"},
    // schedules
    {"pipedream pipedreamflush onefoneb schedule1f1b", "1f1b", ""},
    {"vpp virtual interleaved1f1b scheduleinterleaved1f1b", "interleaved", ""},
    {"filldrain afab schedulegpipe", "gpipe", ""},
    {"bfs loopedbfs breadthfirst", "looped-bfs", ""},
    {"zerobubble zb zb1p interleavedzerobubble", "zb-h1", ""},
    {"zb2p", "zb-h2", ""},
    {"zbv zbvzerobubble", "zbv", ""},
    {"dualpipe", "dualpipev", ""},
    // optimizers and schedules of the rate
    {"adam fusedadam", "adamw", ""},
    {"momentum nesterov", "sgd", ""},
    {"distributedshampoo", "shampoo", ""},
    {"cosineannealing cosineannealinglr", "cosine", ""},
    // recompute
    {"activationcheckpointing gradientcheckpointing checkpointactivations", "recompute", ""},
    {"recomputeactivations remat ac", "recompute", ""},
    // options
    {"learningrate maxlr", "lr", ""},
    {"maxgradnorm gradclip gradientclipping clipgrad maxnorm", "clip", ""},
    {"globalbatchsize globalbatch gbs trainbatchsize batchsize", "batch", ""},
    {"microbatchsize mbs perdevicetrainbatchsize", "microbatch", ""},
    {"gradaccum gradientaccumulation nummicrobatches", "microbatch", ""},
    {"seqlen seqlength sequencelength contextlength maxseqlen blocksize", "sequence", ""},
    {"hiddensize dmodel nembd dim modeldim", "hidden", ""},
    {"numlayers nlayer nlayers numhiddenlayers depth", "layers", ""},
    {"numattentionheads nhead nheads numheads", "heads", ""},
    {"numkeyvalueheads nkvheads numquerygroups", "kv_heads", ""},
    {"intermediatesize ffnhiddensize dff mlpdim", "ffn", ""},
    {"vocabsize paddedvocabsize", "vocab", ""},
    {"tiewordembeddings tieembeddings", "tied", ""},
    {"numexperts nexperts numlocalexperts", "experts", ""},
    {"numexpertspertok moeroutertopk topk", "top_k", ""},
    {"rmsnormeps layernormeps epsilon", "eps", ""},
    {"dtype mixedprecision amp bf16 fp16 torchdtype", "precision", ""},
    {"maxsteps trainiters iterations numsteps maxiters", "steps", ""},
    {"virtualstages nummodelchunks virtualpipelinesize", "chunks", ""},
    {"worldsize degree size ranks", "ways", ""},
    {"bucketsize bucketcapmb", "bucket", ""},
    {"shardingstage", "stage", ""},
    {"cpuoffload offloadoptimizer", "offload", ""},
    {"saveinterval interval", "every", ""},
    {"load", "resume", ""},
    {"gpu hardware", "cluster", ""},
};
// clang-format on

// Given when this library is loaded.
[[maybe_unused]] const bool synonyms_are_set = (set_synonyms(synonyms), true);

}  // namespace
}  // namespace mw
